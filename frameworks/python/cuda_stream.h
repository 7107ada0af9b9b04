// Waiting for a stream of CUDA, and whether it is captured, through the driver that the program has loaded, which is
// never linked.
//
// Threads: any, without Python's global lock (GIL): a wait may take as long as the stream's work.
#pragma once

#include <cstdint>
#include <string>

namespace annulus_python {

// Waits until the work that a stream has now is done. `device` is the GPU's number; -1: that of the memory at
// `address`. Returns "" or what failed.
std::string WaitForStream(uintptr_t address, int device, uintptr_t stream);

// Whether the stream is being captured into a CUDA graph. False where the driver does not tell: then the library, which
// asks it too, refuses the stream.
bool IsCaptured(uintptr_t stream);

}  // namespace annulus_python
