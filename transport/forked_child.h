// What a child made by fork() keeps of this process. A connection ends when the last descriptor of it is closed, so a
// child that outlived its parent (a worker that loads data, say) would hide the parent's death from the other ranks.
//
// Threads: any.
#pragma once

namespace annulus {

// From now on each child that this process forks closes its copy of `socket`. The number stays taken there, by
// /dev/null, so that closing it once more does no harm. Another file that has the number later is left alone. Without
// memory for the note nothing happens.
void CloseInForkedChildren(int socket);

}  // namespace annulus
