/* Annulus: ring collectives for data-parallel training, as a C99 library.
 *
 * Conventions, which hold for every function:
 *  1. Functions return an annulus_status_t; ANNULUS_OK is 0. Outputs are written only on success unless stated.
 *  2. Handles are opaque. What a create function returned, the matching destroy function takes back.
 *  3. Structs that may grow start with struct_bytes; fill them with their init function and later versions stay
 * compatible.
 *  4. Counts are in elements, sizes in bytes, times in milliseconds. Ranks run from 0 to size - 1.
 *  5. Strings passed in are copied. Strings returned are owned by the library.
 *  6. Threads: a communicator may be used from several threads; its calls take turns. Every rank must call the same
 *     collectives of one communicator in the same order, so threads that share a communicator need an order of their
 * own. annulus_comm_abort may be called at any time from any thread. annulus_comm_destroy must be the last call.
 *  7. No call waits for ever: each collective ends at most timeout_ms after its work began, plus up to 3 s in which the
 *     ranks agree on the verdict. Work that is queued begins when what was queued before it has ended.
 *  8. After a failure every rank gets the same verdict from annulus_comm_last_error, and the communicator refuses
 * further work with that status; destroy it and create another.
 */
#ifndef ANNULUS_H_
#define ANNULUS_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define ANNULUS_API __attribute__((visibility("default")))
#else
#define ANNULUS_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define ANNULUS_VERSION_MAJOR 1
#define ANNULUS_VERSION_MINOR 0
#define ANNULUS_VERSION_PATCH 0

/* Outcomes. Numbers are never reused. */
typedef enum annulus_status {
  ANNULUS_OK = 0,
  ANNULUS_IN_PROGRESS = 1,      /* not finished yet; only from annulus_request_test and annulus_request_wait */
  ANNULUS_INVALID_ARGUMENT = 2, /* an argument or setting is wrong; nothing was sent, the communicator stays usable */
  ANNULUS_MISMATCH = 3,         /* ranks called different collectives, types, operations, counts or roots */
  ANNULUS_TIMEOUT = 4,          /* the deadline passed; the error names the rank that was missing */
  ANNULUS_PEER_LOST = 5,        /* a rank died, left or became unreachable */
  ANNULUS_PROTOCOL_ERROR = 6,   /* a broken frame arrived */
  ANNULUS_AUTH_FAILED = 7,      /* a peer did not hold the job key */
  ANNULUS_ABORTED = 8,          /* annulus_comm_abort was called on some rank */
  ANNULUS_SYSTEM_ERROR = 9,     /* the operating system refused; see os_errno */
  ANNULUS_OUT_OF_MEMORY = 10,
  ANNULUS_UNSUPPORTED = 11,
  ANNULUS_INTERNAL = 12 /* a bug in Annulus */
} annulus_status_t;

/* Element types. 8- and 16-bit floats are combined in 32 bits and rounded to nearest even after each step. Results in
 * 8-bit floats saturate: what is beyond the largest finite number, an infinity too, becomes that number (NaN stays
 * NaN). Numbers are never reused. */
typedef enum annulus_type {
  ANNULUS_INT32 = 0,
  ANNULUS_INT64 = 1,
  ANNULUS_FLOAT16 = 2,  /* IEEE 754 binary16 */
  ANNULUS_BFLOAT16 = 3, /* the upper half of a binary32 */
  ANNULUS_FLOAT32 = 4,
  ANNULUS_FLOAT64 = 5,
  ANNULUS_INT8 = 6,
  ANNULUS_UINT8 = 7,
  ANNULUS_UINT32 = 8,
  ANNULUS_UINT64 = 9,
  ANNULUS_FLOAT8_E4M3 = 10, /* OCP 8-bit float without infinities, up to 448; also called e4m3fn */
  ANNULUS_FLOAT8_E5M2 = 11  /* OCP 8-bit float, up to 57344: the upper half of a binary16 */
} annulus_type_t;

/* Reductions: these, and the numbers that annulus_op_create and annulus_op_create_premul_sum give. Integers wrap
 * around. A NaN operand gives NaN (the canonical quiet one); min and max order -0 before +0. AVG is the sum divided by
 * the number of ranks; integers are divided towards zero. */
typedef enum annulus_op {
  ANNULUS_SUM = 0,
  ANNULUS_PROD = 1,
  ANNULUS_MIN = 2,
  ANNULUS_MAX = 3,
  ANNULUS_AVG = 4,
  ANNULUS_OP_LAST = 0x7fffffff /* no operation: makes room for the numbers of created ones */
} annulus_op_t;

/* A reduction of the user's: out[i] = left[i] op right[i] for `count` elements of `type`. `out` may be `left` or
 * `right` itself; it does not overlap them otherwise. Must be associative, and need not be commutative: `left` comes
 * from the ranks before those of `right` in the order that docs/determinism.md gives. Must treat each element for
 * itself, whatever the count, and give the same bits on every rank. Called by the thread that does the collective: the
 * caller of a blocking one, or the communicator's own thread; never by two at a time for one communicator. Must not
 * throw, nor use the communicator. */
typedef void (*annulus_reduce_fn)(const void* left, const void* right, void* out, size_t count, annulus_type_t type,
                                  void* context);

typedef struct annulus_comm annulus_comm_t;
typedef struct annulus_request annulus_request_t;

/* How a communicator is set up. annulus_config_init fills in the environment's values (docs/tuning.md lists the
 * variables) over the defaults; the caller may then overwrite fields. */
typedef struct annulus_config {
  size_t struct_bytes; /* sizeof(annulus_config_t); set by annulus_config_init */
  int32_t rank;        /* ANNULUS_RANK, or the launcher's; -1 = not known */
  int32_t size;        /* ANNULUS_SIZE, or the launcher's; -1 = not known */
  int32_t local_rank;  /* ANNULUS_LOCAL_RANK, or the launcher's; -1 = found at start-up from the hosts of the ranks */
  int32_t local_size;  /* ANNULUS_LOCAL_SIZE, likewise */
  const char* rendezvous; /* ANNULUS_RENDEZVOUS: "host:port" or "[v6]:port" where rank 0 listens */
  const char* job_key;    /* ANNULUS_JOB_KEY: the job's shared secret, at least 16 characters */
  int32_t insecure;       /* ANNULUS_INSECURE: 1 = run without a job key; any process that connects is believed */
  const char* transport;  /* ANNULUS_TRANSPORT: "auto", or a transport's name; docs/tuning.md lists them */
  const char*
      interface_name; /* ANNULUS_INTERFACE: network interface for TCP links, "" = the one that reaches the rendezvous */
  const char* host_id;        /* ANNULUS_HOST_ID: ranks with equal ids share a host; "" = found out */
  int64_t timeout_ms;         /* ANNULUS_TIMEOUT_MS: the deadline of each collective and message */
  int64_t connect_timeout_ms; /* ANNULUS_CONNECT_TIMEOUT_MS: the deadline of annulus_comm_create */
  int64_t slice_bytes;        /* ANNULUS_SLICE_BYTES: pipelined part of a chunk; 0 = chosen by message size */
  int32_t channels;           /* ANNULUS_CHANNELS: parallel rings */
  int32_t tcp_sockets;        /* ANNULUS_TCP_SOCKETS: sockets per TCP link; 0 = chosen */
  int32_t checksum;           /* ANNULUS_CHECKSUM: 1 = CRC32C on every TCP frame */
  int64_t small_bytes;   /* ANNULUS_SMALL_BYTES: up to here a call is small, and takes one hop or few; must agree on
                            all ranks */
  int64_t spin_us;       /* ANNULUS_SPIN_US: busy polling before a waiting rank sleeps; -1 = chosen */
  const char* log_level; /* ANNULUS_LOG: "error", "warn", "info" or "debug". One for the process: each
                            annulus_comm_create sets it */
  int32_t mesh_ranks;    /* ANNULUS_MESH_RANKS: up to so many ranks, each has a link to every other; gather, scatter,
                            alltoall and messages need that. 0 = 64; fewer than 16 count as 16. Must agree on all ranks */
  int32_t priorities;    /* ANNULUS_PRIORITIES: 1 = annulus_comm_set_priority may be used. Must agree on all ranks */
  int64_t memory_bytes;  /* ANNULUS_MEMORY_BYTES: most memory that the communicator may hold on each rank; 0 = no limit.
                            Must agree on all ranks */
  const char* trace;     /* ANNULUS_TRACE: file for a timeline, %r in its name is the rank. "" = none */
  const char* algorithm; /* ANNULUS_ALGORITHM: how collectives are done, where they can be done in that way; "auto" =
                            chosen. docs/tuning.md lists the names. Must agree on all ranks */
  const char* shm_stores; /* ANNULUS_SHM_STORES: how slots of shared memory links are written: "plain" stores,
                             "streaming" ones past the caches, or "auto" = as the distance of the CPUs asks for */
  const char* tuning;     /* ANNULUS_TUNING: "nominal", or "measured": links are measured when the communicator is made.
                             Must agree on all ranks */
  const char* tuning_file; /* ANNULUS_TUNING_FILE: where rank 0 keeps what was measured. "" = nowhere */
} annulus_config_t;

/* What went wrong, in parts. Strings stay valid until the communicator is destroyed, those of
 * refused calls (ANNULUS_INVALID_ARGUMENT) at least for 64 further refusals. */
typedef struct annulus_error {
  size_t struct_bytes;     /* sizeof(annulus_error_t), set by the caller */
  annulus_status_t status; /* ANNULUS_OK when nothing failed */
  int32_t rank;            /* the rank at fault, -1 when none is known */
  int32_t peer;            /* the rank that noticed or the other end, -1 when none */
  uint64_t sequence;       /* the collective's number on this communicator, from 1; 0 when outside any. That of a
                              mismatch, else the one that this rank was in when it learnt of the failure */
  const char* collective;  /* "allreduce" and so on; "" when outside any */
  int32_t os_errno;        /* the operating system's cause, 0 when none */
  const char* message;     /* one sentence that names the culprit */
  const char* advice;      /* one sentence on what to do; may be "" */
} annulus_error_t;

/* What a communicator has done since it was made, up to the moment of asking: what is under way counts too. Times are
 * in nanoseconds. Slices are the parts in which data travels; the heads of frames are not counted. */
typedef struct annulus_counters {
  size_t struct_bytes;         /* sizeof(annulus_counters_t), set by the caller */
  uint64_t collectives;        /* finished well, those that annulus_comm_split makes included */
  uint64_t collectives_failed; /* begun, queued or in a group, then ended by a failure; refused calls count nowhere */
  uint64_t messages;           /* sent or received well */
  uint64_t messages_failed;    /* likewise */
  uint64_t data_bytes;         /* in this rank's send buffers, of what finished well */
  uint64_t driven_ns;          /* a thread was busy with the communicator's work, waits included */
  uint64_t waited_ns;          /* of driven_ns: nothing could move; it polled or slept */
  uint64_t sleeps;             /* how often it gave its core away until something came */
  uint64_t slowest_peer_ns;    /* of waited_ns: the longest for any one peer */
  int32_t slowest_peer;        /* that peer; -1 when it waited for none. A ring waits for its neighbours: who delays
                                  them is seen by asking them likewise */
} annulus_counters_t;

/* The same of one peer. */
typedef struct annulus_peer_counters {
  size_t struct_bytes;     /* sizeof(annulus_peer_counters_t), set by the caller */
  const char* transport;   /* the transport's name; "" when there is no link to that peer */
  uint64_t sent_bytes;     /* slices to it */
  uint64_t received_bytes; /* slices from it */
  uint64_t retransmits;    /* what a network lost or delayed, so that it was sent to it again */
  uint64_t waited_ns;      /* nothing could move before it had sent or taken something */
} annulus_peer_counters_t;

/* The same of all links of one transport. */
typedef struct annulus_transport_counters {
  size_t struct_bytes;     /* sizeof(annulus_transport_counters_t), set by the caller */
  const char* transport;   /* its name, as in ANNULUS_TRANSPORT; "" past the last. A string that is never freed */
  uint64_t sent_bytes;     /* slices */
  uint64_t received_bytes; /* likewise */
  uint64_t retransmits;    /* what a network lost or delayed, so that it was sent again: segments of TCP, its probes for
                              a lost end included. 0 where the transport cannot tell */
} annulus_transport_counters_t;

/* What a communicator holds on this rank, at most, in bytes. What two ranks share is counted by one of them, so the
 * sums over all ranks are what the job holds. Not counted: the kernel's socket buffers, the stacks of up to two threads
 * and the events of a trace. */
typedef struct annulus_memory {
  size_t struct_bytes; /* sizeof(annulus_memory_t), set by the caller */
  uint64_t staging;    /* slots through which data passes; memory of the machine only once used */
  uint64_t links;      /* the links' rings and buffers of frames */
  uint64_t work;       /* schedules and the state of what is under way */
  uint64_t requests;   /* of asynchronous calls, until they are freed */
  uint64_t total;      /* of the above */
  uint64_t budget;     /* memory_bytes of the configuration, 0 = no limit. total stays below it: asynchronous calls
                          beyond are refused with ANNULUS_OUT_OF_MEMORY. A blocking call that must wait for its turn
                          adds one request for as long */
  uint64_t registered; /* this process's memory that annulus_mem_alloc and annulus_mem_register let peers read, for all
                          communicators together */
  uint64_t peers_mapped; /* that of peers which is mapped here: addresses only */
} annulus_memory_t;

/* -- Library ----------------------------------------------------------------------------------------------------- */

/* Returns the version, "major.minor.patch". */
ANNULUS_API const char* annulus_version(void);

/* Returns the status's name, such as "peer lost". */
ANNULUS_API const char* annulus_status_string(annulus_status_t status);

/* Returns the message of the calling thread's latest failed call, "" if none. */
ANNULUS_API const char* annulus_last_error_message(void);

/* Returns an element's size in bytes, 0 for an unknown type. */
ANNULUS_API size_t annulus_type_bytes(annulus_type_t type);

/* -- Communicators ----------------------------------------------------------------------------------------------- */

/* Fills `config` from the environment over the defaults. A wrong variable gives ANNULUS_INVALID_ARGUMENT, and
 * annulus_last_error_message names it and what it allows. */
ANNULUS_API annulus_status_t annulus_config_init(annulus_config_t* config);

/* Joins the job and connects to the peers; every rank must call it. NULL stands for the environment's configuration.
 * Blocks up to connect_timeout_ms. */
ANNULUS_API annulus_status_t annulus_comm_create(const annulus_config_t* config, annulus_comm_t** comm);

/* Forms new communicators out of the ranks of `comm`, all of which must call it: ranks with equal `colour` share one,
 * ranked by (key, rank in comm). A negative colour takes no part further and gets NULL. The new communicator has the
 * settings of `comm` and lives on its own: either may be destroyed first. Blocks up to twice timeout_ms, then
 * connect_timeout_ms, and 2 s more until a failure has its verdict. After a failure annulus_last_error_message tells
 * why; one that concerns `comm` is its error too.
 */
ANNULUS_API annulus_status_t annulus_comm_split(annulus_comm_t* comm, int colour, int key, annulus_comm_t** newcomm);

/* annulus_comm_split into one communicator with the same ranks: another queue of work, independent of `comm`'s. */
ANNULUS_API annulus_status_t annulus_comm_dup(annulus_comm_t* comm, annulus_comm_t** newcomm);

/* Leaves the job and frees the communicator, its requests included. Pending work is aborted. Bounded in time. `comm` is
 * no handle any more, whatever is returned: a later call with it is undefined. */
ANNULUS_API annulus_status_t annulus_comm_destroy(annulus_comm_t* comm);

/* Fails all pending and later work on every rank with ANNULUS_ABORTED. Returns within 50 ms. */
ANNULUS_API annulus_status_t annulus_comm_abort(annulus_comm_t* comm);

ANNULUS_API annulus_status_t annulus_comm_rank(const annulus_comm_t* comm, int* rank);
ANNULUS_API annulus_status_t annulus_comm_size(const annulus_comm_t* comm, int* size);
ANNULUS_API annulus_status_t annulus_comm_local_rank(const annulus_comm_t* comm, int* local_rank);
ANNULUS_API annulus_status_t annulus_comm_local_size(const annulus_comm_t* comm, int* local_size);

/* Copies the communicator's latest error into `error`, of which the caller has set struct_bytes. */
ANNULUS_API annulus_status_t annulus_comm_last_error(const annulus_comm_t* comm, annulus_error_t* error);

/* Copies the communicator's counters into `counters`, of which the caller has set struct_bytes. Disturbs no work that
 * goes on; each number is right by itself, but work that goes on may be in one and not yet in another. */
ANNULUS_API annulus_status_t annulus_comm_counters(const annulus_comm_t* comm, annulus_counters_t* counters);

/* The same of the links with rank `peer`. */
ANNULUS_API annulus_status_t annulus_comm_peer_counters(const annulus_comm_t* comm, int peer,
                                                        annulus_peer_counters_t* counters);

/* The same of the links of the transport at `index`: 0, 1 and so on, until transport is "". */
ANNULUS_API annulus_status_t annulus_comm_transport_counters(const annulus_comm_t* comm, int index,
                                                             annulus_transport_counters_t* counters);

/* Copies what the communicator holds into `memory`, of which the caller has set struct_bytes. */
ANNULUS_API annulus_status_t annulus_comm_memory(const annulus_comm_t* comm, annulus_memory_t* memory);

/* -- Registered memory --------------------------------------------------------------------------------------------- */
/* Buffers that are used again and again. Ranks of one host read each other's registered memory in place, which spares
 * the copy through staging slots, in every collective and message that is large enough to go in slices. Any mix of
 * registered and other buffers works, on any rank; results are the same. Registered memory belongs to the process, not
 * to a communicator. It must not be freed or deregistered while work uses it. Each registration holds a file
 * descriptor. A forked child shares the memory; what it frees or deregisters stays the parent's. A call that sends from
 * registered memory returns when the peers have read it. From any thread. */

/* Gives `bytes` of zeroed memory, aligned to a page, to be freed by annulus_mem_free, which refuses NULL. */
ANNULUS_API annulus_status_t annulus_mem_alloc(size_t bytes, void** memory);
ANNULUS_API annulus_status_t annulus_mem_free(void* memory);

/* Registers the whole pages within memory that is there already; its address and content stay. No thread may write it,
 * and the process not fork, during this call and during annulus_mem_deregister, which undoes it and takes the same
 * address. Takes private anonymous mappings, as mmap makes, and malloc for large blocks where it does not take them
 * from its heap; returns ANNULUS_UNSUPPORTED for other memory, which can be used as well without. Must be undone before
 * the memory is freed or resized: what comes to the same address later would be read where the old buffer was. */
ANNULUS_API annulus_status_t annulus_mem_register(void* memory, size_t bytes);
ANNULUS_API annulus_status_t annulus_mem_deregister(void* memory);

/* -- Operations of the user's ------------------------------------------------------------------------------------- */
/* They belong to a communicator and count from 16 on, in the order in which they are created; a number is not used
 * again. Every rank must create and destroy the same ones in the same order. Up to 64 at a time. They serve in every
 * collective that reduces, with any type. */

/* A sum to which each rank contributes its elements times its own `factor`, which may differ from rank to rank. Floats
 * are multiplied by the factor as a float32 (float64: as it is) and rounded to their type once, then added as
 * ANNULUS_SUM does. For integers the factor must be one that the type holds, else the collective returns
 * ANNULUS_INVALID_ARGUMENT; products wrap around. */
ANNULUS_API annulus_status_t annulus_op_create_premul_sum(annulus_comm_t* comm, double factor, annulus_op_t* op);

/* A reduction by `fn`. `context` is handed to it, and must stay valid until all work with the operation has finished.
 */
ANNULUS_API annulus_status_t annulus_op_create(annulus_comm_t* comm, annulus_reduce_fn fn, void* context,
                                               annulus_op_t* op);

/* Later calls with `op` are refused; work that is queued already is done with it. */
ANNULUS_API annulus_status_t annulus_op_destroy(annulus_comm_t* comm, annulus_op_t op);

/* -- Collectives: blocking --------------------------------------------------------------------------------------- */
/* Buffers are aligned to their element's size, and overlap only in the in-place form that each comment gives.
 * A count of 0 is allowed and still synchronises nothing but the order of calls. */

/* recvbuf[i] = reduction over ranks of sendbuf[i]; `count` elements each. In place: sendbuf == recvbuf. */
ANNULUS_API annulus_status_t annulus_allreduce(annulus_comm_t* comm, const void* sendbuf, void* recvbuf, size_t count,
                                               annulus_type_t type, annulus_op_t op);

/* Rank r gets the reduction of elements [r * recvcount, (r + 1) * recvcount) of everyone's sendbuf, which holds
 * size * recvcount elements. In place: recvbuf == sendbuf + rank * recvcount elements. */
ANNULUS_API annulus_status_t annulus_reduce_scatter(annulus_comm_t* comm, const void* sendbuf, void* recvbuf,
                                                    size_t recvcount, annulus_type_t type, annulus_op_t op);

/* Every rank gets all ranks' sendbufs, in rank order; recvbuf holds size * sendcount elements.
 * In place: sendbuf == recvbuf + rank * sendcount elements. */
ANNULUS_API annulus_status_t annulus_allgather(annulus_comm_t* comm, const void* sendbuf, void* recvbuf,
                                               size_t sendcount, annulus_type_t type);

/* Every rank's recvbuf gets the root's sendbuf. sendbuf is read on the root only. In place: sendbuf == recvbuf. As in
 * scatter and gather, nobody waits for a rank that only sends: when ranks disagree on the root, some or all may return
 * ANNULUS_OK, and the next call that brings them together reports it. */
ANNULUS_API annulus_status_t annulus_broadcast(annulus_comm_t* comm, const void* sendbuf, void* recvbuf, size_t count,
                                               annulus_type_t type, int root);

/* The root's recvbuf gets the reduction. recvbuf is written on the root only. In place on the root: sendbuf == recvbuf.
 */
ANNULUS_API annulus_status_t annulus_reduce(annulus_comm_t* comm, const void* sendbuf, void* recvbuf, size_t count,
                                            annulus_type_t type, annulus_op_t op, int root);

/* Returns once every rank has called it. */
ANNULUS_API annulus_status_t annulus_barrier(annulus_comm_t* comm);

/* The root's recvbuf gets all ranks' sendbufs, in rank order: size * count elements. recvbuf is written on the root
 * only. In place on the root: sendbuf == recvbuf + rank * count elements. */
ANNULUS_API annulus_status_t annulus_gather(annulus_comm_t* comm, const void* sendbuf, void* recvbuf, size_t count,
                                            annulus_type_t type, int root);

/* Rank r's recvbuf gets elements [r * count, (r + 1) * count) of the root's sendbuf, which holds size * count elements
 * and is read on the root only. In place on the root: recvbuf == sendbuf + rank * count elements. */
ANNULUS_API annulus_status_t annulus_scatter(annulus_comm_t* comm, const void* sendbuf, void* recvbuf, size_t count,
                                             annulus_type_t type, int root);

/* Rank r gets elements [r * count, (r + 1) * count) of rank s's sendbuf at s * count of its recvbuf; both buffers hold
 * size * count elements. Not in place. */
ANNULUS_API annulus_status_t annulus_alltoall(annulus_comm_t* comm, const void* sendbuf, void* recvbuf, size_t count,
                                              annulus_type_t type);

/* -- Messages ---------------------------------------------------------------------------------------------------- */
/* From one rank to another. The n-th send to a rank meets that rank's n-th receive from this one; their count and type
 * must agree. Messages need no agreement with other ranks, and wait for no collective: the asynchronous forms make
 * progress side by side, those with other peers and of the other direction included. A send returns, or its request is
 * done, when the buffer may be used again; large ones wait for the receive. Ends at most timeout_ms after the message
 * before it on the same way. */

ANNULUS_API annulus_status_t annulus_send(annulus_comm_t* comm, const void* sendbuf, size_t count, annulus_type_t type,
                                          int peer);
ANNULUS_API annulus_status_t annulus_recv(annulus_comm_t* comm, void* recvbuf, size_t count, annulus_type_t type,
                                          int peer);
ANNULUS_API annulus_status_t annulus_send_async(annulus_comm_t* comm, const void* sendbuf, size_t count,
                                                annulus_type_t type, int peer, annulus_request_t** request);
ANNULUS_API annulus_status_t annulus_recv_async(annulus_comm_t* comm, void* recvbuf, size_t count, annulus_type_t type,
                                                int peer, annulus_request_t** request);

/* -- Collectives: parts of different sizes ----------------------------------------------------------------------- */
/* As allgather and so on, but the parts of a buffer that holds one for every rank may differ: rank r's has counts[r]
 * elements and starts at element offsets[r], or behind the part before it where offsets is NULL. Both arrays have an
 * entry per rank, and are read before the call returns. Parts must not overlap. Two ranks that exchange a part must
 * agree on its count. In place: the own part is where it belongs in the larger buffer. */

/* All ranks give the same recvcounts; sendcount is this rank's. */
ANNULUS_API annulus_status_t annulus_allgatherv(annulus_comm_t* comm, const void* sendbuf, size_t sendcount,
                                                void* recvbuf, const size_t* recvcounts, const size_t* recvoffsets,
                                                annulus_type_t type);

/* All ranks give the same sendcounts; recvcount is this rank's. The offsets may differ. */
ANNULUS_API annulus_status_t annulus_reduce_scatterv(annulus_comm_t* comm, const void* sendbuf,
                                                     const size_t* sendcounts, const size_t* sendoffsets, void* recvbuf,
                                                     size_t recvcount, annulus_type_t type, annulus_op_t op);

/* recvbuf, recvcounts and recvoffsets are used on the root only. */
ANNULUS_API annulus_status_t annulus_gatherv(annulus_comm_t* comm, const void* sendbuf, size_t sendcount, void* recvbuf,
                                             const size_t* recvcounts, const size_t* recvoffsets, annulus_type_t type,
                                             int root);

/* sendbuf, sendcounts and sendoffsets are used on the root only. */
ANNULUS_API annulus_status_t annulus_scatterv(annulus_comm_t* comm, const void* sendbuf, const size_t* sendcounts,
                                              const size_t* sendoffsets, void* recvbuf, size_t recvcount,
                                              annulus_type_t type, int root);

/* sendcounts[r] elements go to rank r, recvcounts[r] come from it. Not in place. */
ANNULUS_API annulus_status_t annulus_alltoallv(annulus_comm_t* comm, const void* sendbuf, const size_t* sendcounts,
                                               const size_t* sendoffsets, void* recvbuf, const size_t* recvcounts,
                                               const size_t* recvoffsets, annulus_type_t type);

/* -- Collectives: asynchronous ----------------------------------------------------------------------------------- */
/* As above, but they return once the work is queued; a thread of the communicator does it, in the order of the calls.
 * Buffers are lent to the library until the request has finished. Each request must be freed by annulus_request_free.
 */

ANNULUS_API annulus_status_t annulus_allreduce_async(annulus_comm_t* comm, const void* sendbuf, void* recvbuf,
                                                     size_t count, annulus_type_t type, annulus_op_t op,
                                                     annulus_request_t** request);
ANNULUS_API annulus_status_t annulus_reduce_scatter_async(annulus_comm_t* comm, const void* sendbuf, void* recvbuf,
                                                          size_t recvcount, annulus_type_t type, annulus_op_t op,
                                                          annulus_request_t** request);
ANNULUS_API annulus_status_t annulus_allgather_async(annulus_comm_t* comm, const void* sendbuf, void* recvbuf,
                                                     size_t sendcount, annulus_type_t type,
                                                     annulus_request_t** request);
ANNULUS_API annulus_status_t annulus_broadcast_async(annulus_comm_t* comm, const void* sendbuf, void* recvbuf,
                                                     size_t count, annulus_type_t type, int root,
                                                     annulus_request_t** request);
ANNULUS_API annulus_status_t annulus_reduce_async(annulus_comm_t* comm, const void* sendbuf, void* recvbuf,
                                                  size_t count, annulus_type_t type, annulus_op_t op, int root,
                                                  annulus_request_t** request);
ANNULUS_API annulus_status_t annulus_barrier_async(annulus_comm_t* comm, annulus_request_t** request);
ANNULUS_API annulus_status_t annulus_gather_async(annulus_comm_t* comm, const void* sendbuf, void* recvbuf,
                                                  size_t count, annulus_type_t type, int root,
                                                  annulus_request_t** request);
ANNULUS_API annulus_status_t annulus_scatter_async(annulus_comm_t* comm, const void* sendbuf, void* recvbuf,
                                                   size_t count, annulus_type_t type, int root,
                                                   annulus_request_t** request);
ANNULUS_API annulus_status_t annulus_alltoall_async(annulus_comm_t* comm, const void* sendbuf, void* recvbuf,
                                                    size_t count, annulus_type_t type, annulus_request_t** request);
ANNULUS_API annulus_status_t annulus_allgatherv_async(annulus_comm_t* comm, const void* sendbuf, size_t sendcount,
                                                      void* recvbuf, const size_t* recvcounts,
                                                      const size_t* recvoffsets, annulus_type_t type,
                                                      annulus_request_t** request);
ANNULUS_API annulus_status_t annulus_reduce_scatterv_async(annulus_comm_t* comm, const void* sendbuf,
                                                           const size_t* sendcounts, const size_t* sendoffsets,
                                                           void* recvbuf, size_t recvcount, annulus_type_t type,
                                                           annulus_op_t op, annulus_request_t** request);
ANNULUS_API annulus_status_t annulus_gatherv_async(annulus_comm_t* comm, const void* sendbuf, size_t sendcount,
                                                   void* recvbuf, const size_t* recvcounts, const size_t* recvoffsets,
                                                   annulus_type_t type, int root, annulus_request_t** request);
ANNULUS_API annulus_status_t annulus_scatterv_async(annulus_comm_t* comm, const void* sendbuf, const size_t* sendcounts,
                                                    const size_t* sendoffsets, void* recvbuf, size_t recvcount,
                                                    annulus_type_t type, int root, annulus_request_t** request);
ANNULUS_API annulus_status_t annulus_alltoallv_async(annulus_comm_t* comm, const void* sendbuf,
                                                     const size_t* sendcounts, const size_t* sendoffsets, void* recvbuf,
                                                     const size_t* recvcounts, const size_t* recvoffsets,
                                                     annulus_type_t type, annulus_request_t** request);

/* Sets the priority, 0 at first, of the collectives that are queued from now on. One that waits in the queue is
 * overtaken by those of a higher priority, not by others; one that has begun is finished first. Rank 0's queue decides,
 * for all ranks alike, so all must queue the same collectives in the same order with the same priorities. Needs
 * priorities = 1 in the configuration; blocking collectives then take their turn in the queue too. */
ANNULUS_API annulus_status_t annulus_comm_set_priority(annulus_comm_t* comm, int priority);

/* Asynchronous calls between the two, by one thread, are only collected; annulus_group_end queues them. Allreduces of
 * one type and operation travel as one, straight from and to their buffers, with the bits that they would have apart;
 * so many small tensors cost little more than one large one. Calls of a group may run in any order: none may use what
 * another one writes. What is in the group must be the same, in the same order, on all ranks. In a group the calls'
 * `request` may be NULL; the group's own, unless that is NULL too, is done when all of them are. Before the group's end
 * requests are not to be waited for (ANNULUS_INVALID_ARGUMENT); freed ones stay in the group, and their buffers lent.
 */
ANNULUS_API annulus_status_t annulus_group_start(annulus_comm_t* comm);
ANNULUS_API annulus_status_t annulus_group_end(annulus_comm_t* comm, annulus_request_t** request);

/* Waits up to `timeout_ms` (-1: up to the communicator's own deadline) and returns the collective's outcome, or
 * ANNULUS_IN_PROGRESS when it has not finished; the request may then be waited for again.
 *
 * The outcome is given once, or to each of the threads that were waiting when it came; whoever waits for the request
 * later gets ANNULUS_INVALID_ARGUMENT. So does, from all three functions, a request that was freed, whose communicator
 * was destroyed, or that never was one; annulus_last_error_message then tells which. */
ANNULUS_API annulus_status_t annulus_request_wait(annulus_request_t* request, int64_t timeout_ms);

/* annulus_request_wait with a timeout of 0. */
ANNULUS_API annulus_status_t annulus_request_test(annulus_request_t* request);

/* Gives the request back, whether or not it was waited for. Freeing one that has not finished waits for it first,
 * unless its group is open. NULL is allowed. */
ANNULUS_API annulus_status_t annulus_request_free(annulus_request_t* request);

#ifdef __cplusplus
}
#endif

#endif /* ANNULUS_H_ */
