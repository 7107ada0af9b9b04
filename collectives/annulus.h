/* Annulus: ring collectives for data-parallel training, as a C99 library. docs/api.md is the guide, with examples.
 *
 * Conventions, which hold for every function:
 *  1. Functions return an annulus_status_t; ANNULUS_OK is 0, and a number that the program does not know is a failure.
 *     Outputs are written only on success, except that a function that makes something sets it to NULL when it fails.
 *  2. Handles are opaque. The destroy or free function takes back what the matching maker returned; it allows NULL.
 *  3. Structs start with struct_bytes and may grow. The caller sets it to the struct's sizeof, and the rest of a struct
 *     that the library reads to 0 or by its init function: 0 is the default of every field of a later version. A field
 *     that is set but unknown to the library is refused with ANNULUS_UNSUPPORTED. What the library fills, it fills
 *     up to struct_bytes: fields that it does not know become 0, and struct_bytes becomes the size of what it knows.
 *  4. Counts are in elements, sizes in bytes, times in milliseconds. Ranks run from 0 to size - 1.
 *  5. Strings passed in are copied. Strings returned are owned by the library.
 *  6. Threads: a communicator may be used from several threads; its calls take turns. Every rank must call the same
 *     collectives of one communicator in the same order, so threads that share a communicator must agree on an order.
 *     annulus_comm_abort may be called at any time from any thread. annulus_comm_destroy must be the last call. A
 *     forked child must not use its parent's communicators.
 *  7. No call waits forever: each collective ends at most its deadline after its work began, plus the time in which
 *     the ranks agree on the verdict: as a rule up to 3 s, up to 15.6 s where a path between hosts stays cut. Queued
 *     work begins when the work queued before it has ended.
 *  8. There are two kinds of failures. A refused call (scope ANNULUS_SCOPE_CALL) did nothing: correct it and go on. Any
 *     other failure of a collective ends the communicator (ANNULUS_SCOPE_COMMUNICATOR): every rank gets the same
 *     verdict (docs/failures.md has the exceptions), and further work is refused with its status. Getters, counters,
 *     requests and destroy still work. A call on which ranks differ, or that one refuses, does not end it with
 *     ANNULUS_AGREE_FIRST: ANNULUS_MISMATCH.
 *
 * Each function's comment, or that of its section for all functions there, says under Shapes what buffers hold, and
 * then gives Units, Ownership, Threads and Errors. Errors of every function: ANNULUS_INVALID_ARGUMENT for a NULL or a
 * number that is not allowed, ANNULUS_OUT_OF_MEMORY. annulus_last_error tells more.
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

#define ANNULUS_VERSION_MAJOR 0
#define ANNULUS_VERSION_MINOR 9
#define ANNULUS_VERSION_PATCH 0

/* Outcomes of calls. Numbers are never reused. */
typedef enum annulus_status {
  ANNULUS_OK = 0,
  ANNULUS_IN_PROGRESS = 1,      /* not finished yet; only from annulus_request_test and annulus_request_wait */
  ANNULUS_INVALID_ARGUMENT = 2, /* an argument or setting is wrong; nothing was sent, the communicator stays usable */
  ANNULUS_MISMATCH = 3,         /* ranks called different collectives, types, operations, counts or roots */
  ANNULUS_TIMEOUT = 4,          /* the deadline passed; the error names the rank that was missing */
  ANNULUS_PEER_LOST = 5,        /* a rank died, left or became unreachable */
  ANNULUS_PROTOCOL_ERROR = 6,   /* broken data arrived: a frame, or a value in the store */
  ANNULUS_AUTH_FAILED = 7,      /* a peer did not hold the job key */
  ANNULUS_ABORTED = 8,          /* on some rank annulus_comm_abort was called, or a reduction function failed */
  ANNULUS_SYSTEM_ERROR = 9,     /* the operating system refused; see cause_code */
  ANNULUS_OUT_OF_MEMORY = 10,
  ANNULUS_UNSUPPORTED = 11,        /* this version, or this machine, cannot do it; as for ANNULUS_INVALID_ARGUMENT */
  ANNULUS_INTERNAL = 12,           /* a bug in Annulus */
  ANNULUS_STATUS_LAST = 0x7fffffff /* not a status: reserves the numbers of later versions */
} annulus_status_t;

/* Element types. 8- and 16-bit floats are combined in 32 bits and rounded to nearest even after each step. Results in
 * 8-bit floats saturate: values beyond the largest finite number, and infinities, become that number. NaN stays NaN.
 * Buffers are aligned to their element, those of complex numbers to its halves. Numbers are never reused. */
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
  ANNULUS_FLOAT8_E5M2 = 11, /* OCP 8-bit float, up to 57344: the upper half of a binary16 */
  ANNULUS_INT16 = 12,
  ANNULUS_UINT16 = 13,
  ANNULUS_BOOL = 14,             /* a byte that is 0 or 1, as C's bool */
  ANNULUS_COMPLEX64 = 15,        /* two float32: real part, imaginary part */
  ANNULUS_COMPLEX128 = 16,       /* two float64 */
  ANNULUS_TYPE_LAST = 0x7fffffff /* not a type: reserves the numbers of later versions */
} annulus_type_t;

/* Reductions: the ones below, and those that annulus_op_create and annulus_op_create_premul_sum return. Integers wrap
 * around. A NaN operand gives NaN (the canonical quiet one); min and max order -0 before +0. AVG is the sum divided by
 * the number of ranks; integers are divided towards zero. BAND, BOR and BXOR are for integers and bool. Of bools SUM
 * and MAX are "or", PROD and MIN are "and"; AVG has none. Complex numbers have SUM, PROD and AVG, and factors that are
 * real. What a type does not have is refused with ANNULUS_INVALID_ARGUMENT. */
typedef enum annulus_op {
  ANNULUS_SUM = 0,
  ANNULUS_PROD = 1,
  ANNULUS_MIN = 2,
  ANNULUS_MAX = 3,
  ANNULUS_AVG = 4,
  ANNULUS_BAND = 5, /* bitwise and */
  ANNULUS_BOR = 6,
  ANNULUS_BXOR = 7,
  ANNULUS_OP_LAST = 0x7fffffff /* not an operation: reserves the numbers of created ones */
} annulus_op_t;

/* A user-defined reduction: out[i] = left[i] op right[i] for `count` elements of `type`. `out` may be `left` or `right`
 * itself; otherwise it does not overlap them. The function must be associative but need not be commutative: `left`
 * comes from the ranks before those of `right` in the order given in docs/determinism.md. It must treat each element
 * independently, whatever the count, and give the same bits on every rank. It is called by the communicator's own
 * thread or by one in a call that waits (blocking calls, annulus_request_wait, _test, _free), which may drive work of
 * other threads too; never by two threads at a time for one communicator. It must not throw or use the communicator. It
 * returns 0; any other number says that it failed, which ends the communicator on every rank. */
typedef int32_t (*annulus_reduce_fn)(const void* left, const void* right, void* out, size_t count, annulus_type_t type,
                                     void* context);

typedef struct annulus_comm annulus_comm_t;
typedef struct annulus_request annulus_request_t;

/* Where values come from that a configuration does not give. */
#define ANNULUS_FROM_ENVIRONMENT 1 /* the variables ANNULUS_*, which annulus-run sets too */
#define ANNULUS_FROM_LAUNCHER 2    /* the variables of torchrun, horovodrun, mpirun and srun (docs/launchers.md) */

/* A store that all ranks reach, such as a framework's. `set` keeps a value in place of an earlier one; `get` waits up
 * to timeout_ms for one, writes it to `value` if `capacity` bytes suffice, and its size to *bytes. They return 0, or
 * another number on failure; a `get` that fails before its time says that the store is broken. They are called by
 * annulus_comm_create only, on the thread that calls it, and nothing interrupts one that does not return in time.
 * Communicators that are created at the same time need stores, or names in a store, of their own. */
typedef struct annulus_store {
  size_t struct_bytes; /* sizeof(annulus_store_t), set by the caller */
  void* context;
  int32_t (*set)(void* context, const char* key, const void* value, size_t bytes);
  int32_t (*get)(void* context, const char* key, void* value, size_t capacity, size_t* bytes, int64_t timeout_ms);
} annulus_store_t;

/* Called once on rank 0, even if alone, with the "host:port" where the others find it. Returns 0; else it failed. */
typedef int32_t (*annulus_listening_fn)(void* context, const char* address);

/* Configuration of a communicator. annulus_config_init fills it; the caller may then set fields. A value comes from the
 * first of these that has it: its field, `settings`, an ANNULUS_* variable, the launcher, the default. docs/tuning.md
 * lists all settings by name. Strings are read during annulus_comm_create only. The library overwrites its copy of the
 * job key when the communicator is destroyed; until then splits need it. */
typedef struct annulus_config {
  size_t struct_bytes;        /* sizeof(annulus_config_t); set by annulus_config_init */
  uint32_t sources;           /* ANNULUS_FROM_ENVIRONMENT, ANNULUS_FROM_LAUNCHER, both or 0 */
  int32_t insecure;           /* 1 = run without a job key; any process that connects is trusted. 0 = not given: to
                                 overrule ANNULUS_INSECURE=1, put "insecure=0" into `settings` */
  int32_t rank;               /* from 0; -1 = not given. With rank and size no launcher is asked for them */
  int32_t size;               /* number of ranks; -1 = not given */
  int32_t local_rank;         /* -1 = not given; determined at start-up from the ranks' hosts when nothing gives it */
  int32_t local_size;         /* likewise */
  const char* rendezvous;     /* "host:port" or "[v6]:port" where rank 0 listens; NULL = not given */
  const char* job_key;        /* the job's shared secret, at least 16 characters; NULL = not given */
  const char* host_id;        /* ranks with equal ids share a host; NULL = not given, "" = detected */
  int64_t timeout_ms;         /* deadline of each collective and message; 0 = not given */
  int64_t connect_timeout_ms; /* deadline of annulus_comm_create; 0 = not given */
  int64_t memory_bytes; /* most memory that the communicator may hold on each rank. Must agree on all ranks. 0 = not
                           given */
  const char* const* settings;    /* "channels=2" and so on, then NULL; the latest of a name counts. Unknown names are
                                     refused. NULL = none */
  const annulus_store_t* store;   /* ranks meet through it, and `rendezvous` is not used. Without a job key rank 0 draws
                                     one, which whoever reads the store can use. On all ranks; NULL = not given */
  annulus_listening_fn listening; /* rank 0 listens at a port that the kernel chooses, not at `rendezvous`; other ranks
                                     ignore it. NULL = not given */
  void* listening_context;        /* passed to `listening` */
} annulus_config_t;

/* What annulus_run and annulus_submit do: the function of that name in lower case. Numbers are never reused. */
typedef enum annulus_kind {
  ANNULUS_CALL_ALLREDUCE = 1,
  ANNULUS_CALL_REDUCE_SCATTER = 2,
  ANNULUS_CALL_ALLGATHER = 3,
  ANNULUS_CALL_BROADCAST = 4,
  ANNULUS_CALL_REDUCE = 5,
  ANNULUS_CALL_BARRIER = 6,
  ANNULUS_CALL_GATHER = 7,
  ANNULUS_CALL_SCATTER = 8,
  ANNULUS_CALL_ALLTOALL = 9,
  ANNULUS_CALL_ALLGATHERV = 10,
  ANNULUS_CALL_REDUCE_SCATTERV = 11,
  ANNULUS_CALL_GATHERV = 12,
  ANNULUS_CALL_SCATTERV = 13,
  ANNULUS_CALL_ALLTOALLV = 14,
  ANNULUS_CALL_SEND = 15,
  ANNULUS_CALL_RECV = 16,
  ANNULUS_CALL_LAST = 0x7fffffff /* not a call: reserves the numbers of later versions */
} annulus_kind_t;

/* Called once when a submitted call has ended, after its outcome can be waited for; not for a call that annulus_submit
 * refused. It may call anything except annulus_comm_destroy of its communicator: callbacks have a thread of their own
 * for each communicator, one at a time, so a callback must not wait for what another one does. annulus_comm_destroy
 * calls those that remain, and returns when they have. It must not throw. */
typedef void (*annulus_done_fn)(void* context, annulus_status_t status);

#define ANNULUS_WIRE_EXACT 1
#define ANNULUS_AGREE_FIRST 1 /* ranks compare the call before its data moves, as with the setting check_calls = 1 */
#define ANNULUS_ANY_PEER (-1)
#define ANNULUS_ANY_TAG (-1)
#define ANNULUS_STREAM_CUDA 1

typedef struct annulus_received {
  size_t struct_bytes; /* sizeof(annulus_received_t), set by the caller */
  int32_t source;      /* rank that sent the message */
  int32_t tag;
  size_t count; /* number of elements */
} annulus_received_t;

/* One call, as data: {sizeof(annulus_call_t)} and the fields that differ from 0. Fields that the kind does not use are
 * ignored. Those marked "not supported yet" are refused with ANNULUS_UNSUPPORTED unless they are 0. */
typedef struct annulus_call {
  size_t struct_bytes; /* sizeof(annulus_call_t), set by the caller */
  int32_t kind;        /* ANNULUS_CALL_... */
  annulus_type_t type; /* of the elements */
  annulus_op_t op;     /* for reductions */
  int32_t root;        /* root, or the peer of a message; of a receive perhaps ANNULUS_ANY_PEER */
  const void* sendbuf;
  void* recvbuf;
  size_t count;             /* as in the function: count, sendcount or recvcount; for alltoallv unused */
  const size_t* sendcounts; /* arrays with an entry per rank, as in the function; read before the call returns */
  const size_t* sendoffsets;
  const size_t* recvcounts;
  const size_t* recvoffsets;
  int64_t timeout_ms;  /* deadline of this call, up to 86,400,000 (a day); 0 = the communicator's. Allreduces of a group
                          that are sent as one have the longest of theirs; the communicator's counts as the longest */
  void* stream;        /* that orders the call, for annulus_submit only; must be NULL while stream_kind is 0 */
  int32_t stream_kind; /* 0 = none; ANNULUS_STREAM_CUDA = a CUstream or cudaStream_t, NULL the legacy default stream */
  int32_t tag;         /* of messages, 0 or more; of a receive perhaps ANNULUS_ANY_TAG */
  int32_t priority;    /* a call in the queue is overtaken only by those of a higher priority; one that has begun is
                          finished first. Other than 0 only with the setting priorities = 1, and without a stream */
  int32_t wire;        /* how elements travel: 0 and ANNULUS_WIRE_EXACT = as they are. Others: not supported yet */
  uint64_t flags;      /* ANNULUS_AGREE_FIRST, for collectives, on all ranks alike; or 0 */
  annulus_done_fn done;         /* called at the end; NULL = nothing is. For annulus_submit only */
  void* context;                /* passed to `done` */
  const char* label;            /* the user's name for the call, in errors and in the timeline; NULL = none */
  annulus_received_t* received; /* filled before a receive ends well, and lent until it has ended; NULL = nothing is */
} annulus_call_t;

/* Whom a failure concerns (scope), and where its cause_code comes from (cause). */
#define ANNULUS_SCOPE_CALL 0         /* this call alone, which did nothing: the communicator stays usable */
#define ANNULUS_SCOPE_COMMUNICATOR 1 /* the communicator, which has ended on every rank */
#define ANNULUS_CAUSE_NONE 0
#define ANNULUS_CAUSE_ERRNO 1 /* the operating system */
#define ANNULUS_CAUSE_CUDA 2  /* not given yet */
#define ANNULUS_CAUSE_VERBS 3 /* not given yet */

/* Description of a failure. */
typedef struct annulus_error {
  size_t struct_bytes;     /* sizeof(annulus_error_t), set by the caller */
  annulus_status_t status; /* ANNULUS_OK when nothing failed */
  int32_t scope;           /* ANNULUS_SCOPE_... */
  int32_t rank;            /* the rank at fault, -1 when none is known */
  int32_t peer;            /* the rank that noticed, or the other end; -1 when none */
  int32_t cause;           /* ANNULUS_CAUSE_... */
  int32_t cause_code;      /* errno, for example; 0 when there is none */
  uint64_t sequence;       /* in a verdict, the collective's number on this communicator, from 1; 0 when outside any.
                              For a mismatch, the mismatched collective, else the one this rank was in when it learnt
                              of the failure */
  const char* collective;  /* "allreduce" and so on; "" when outside any, and for a group that was refused */
  const char* label;       /* the failed call's; "" when it has none, and in a verdict */
  const char* message;     /* one sentence that names the culprit */
  const char* advice;      /* one sentence on what to do; may be "" */
} annulus_error_t;

/* What a communicator has done since it was created. Work in progress is included. Times are in nanoseconds. Slices are
 * the parts in which data travels; frame headers are not counted. */
typedef struct annulus_counters {
  size_t struct_bytes;         /* sizeof(annulus_counters_t), set by the caller */
  uint64_t collectives;        /* completed, including those that annulus_comm_split makes */
  uint64_t collectives_failed; /* begun, queued or in a group, then ended by a failure; refused calls do not count */
  uint64_t messages;           /* sent or received completely */
  uint64_t messages_failed;    /* likewise */
  uint64_t data_bytes;         /* in this rank's send buffers, for completed calls */
  uint64_t driven_ns;          /* time in which a thread was busy with the communicator's work, including waits */
  uint64_t waited_ns;          /* part of driven_ns in which nothing could move and the thread polled or slept */
  uint64_t sleeps;             /* how often the thread gave up its core until something arrived */
  uint64_t slowest_peer_ns;    /* part of waited_ns spent on the peer that was waited for longest */
  int64_t slowest_peer;        /* that peer; -1: none. A ring waits for its neighbours; theirs show who delays them */
} annulus_counters_t;

/* The same counters for one peer. */
typedef struct annulus_peer_counters {
  size_t struct_bytes;     /* sizeof(annulus_peer_counters_t), set by the caller */
  const char* transport;   /* the transport's name; "" when there is no link to that peer */
  uint64_t sent_bytes;     /* slices sent to it */
  uint64_t received_bytes; /* slices received from it */
  uint64_t retransmits;    /* what was sent to it again because a network lost or delayed it */
  uint64_t waited_ns;      /* time in which nothing could move until it sent or took something */
} annulus_peer_counters_t;

/* The same counters for all links of one transport. */
typedef struct annulus_transport_counters {
  size_t struct_bytes;       /* sizeof(annulus_transport_counters_t), set by the caller */
  const char* transport;     /* its name, as in ANNULUS_TRANSPORT; "" past the last one. The string is never freed */
  uint64_t sent_bytes;       /* slices sent */
  uint64_t received_bytes;   /* slices received */
  uint64_t retransmits;      /* packets sent again, also to probe for a lost end; 0 where it is not known */
  uint64_t reconnects;       /* broken connections that were made again (ANNULUS_RECONNECT_MS) */
  uint64_t bytes_sent_again; /* over these: what had not arrived when the earlier ones broke */
  uint64_t read_bytes;       /* part of received_bytes: what this rank's device read in its peers' memory */
  uint64_t landed_bytes;     /* part of read_bytes: straight into registered memory, without a copy */
} annulus_transport_counters_t;

/* Most memory that a communicator holds on this rank, in bytes. Memory shared by two ranks is counted by one of them,
 * so the sums over all ranks are what the job holds. Not counted: the kernel's socket buffers, the stacks of up to
 * three threads, and the events of a trace. */
typedef struct annulus_memory {
  size_t struct_bytes;   /* sizeof(annulus_memory_t), set by the caller */
  uint64_t staging;      /* slots through which data passes; they take physical memory only once used */
  uint64_t links;        /* rings and frame buffers of the links */
  uint64_t work;         /* schedules and the state of work in progress */
  uint64_t requests;     /* requests of asynchronous calls, until they are freed */
  uint64_t total;        /* sum of the above */
  uint64_t budget;       /* memory_bytes of the configuration, 0 = no limit. `total` stays below it: asynchronous
                            calls beyond it are refused with ANNULUS_OUT_OF_MEMORY. A blocking call that must wait for
                            its turn adds one request while it waits */
  uint64_t registered;   /* memory of this process that peers may read, for all communicators together */
  uint64_t peers_mapped; /* registered memory of peers that is mapped here: addresses only */
  uint64_t gpu;          /* of GPUs, beside `total`: for large calls in streams (ANNULUS_STREAM_FOLD_BYTES) */
} annulus_memory_t;

/* How work on device memory is done. */
#define ANNULUS_PATH_NONE 0    /* nothing works on device memory */
#define ANNULUS_PATH_STAGED 1  /* the CPU, on copies */
#define ANNULUS_PATH_KERNELS 2 /* the GPU, on slots where they are; with copies for what has no kernel */
typedef struct annulus_device {
  size_t struct_bytes; /* sizeof(annulus_device_t), set by the caller */
  int32_t driver;      /* version of CUDA's driver, 13000 for 13.0; 0 when none is used */
  int32_t path;        /* ANNULUS_PATH_... */
  int32_t number;      /* the GPU's; -1 until a call of the process has a device buffer */
  int32_t capability;  /* 90 is sm_90; 0 when there is no GPU yet */
  const char* name;    /* the GPU's, such as "NVIDIA H200"; "" when there is none yet */
  const char* why;     /* why no better path is taken; "" when there is no better one */
} annulus_device_t;

/* -- Library ----------------------------------------------------------------------------------------------------- */
/*   Shapes:    none.
 *   Units:     bytes.
 *   Ownership: strings are the library's and stay valid while it is loaded.
 *   Threads:   any.
 *   Errors:    none. */

/* Returns the version, "major.minor.patch". */
ANNULUS_API const char* annulus_version(void);

/* Returns the status's name, such as "peer lost". */
ANNULUS_API const char* annulus_status_string(annulus_status_t status);

/* Returns an element's size in bytes, 0 for an unknown type. */
ANNULUS_API size_t annulus_type_bytes(annulus_type_t type);

/* -- Failures ---------------------------------------------------------------------------------------------------- */
/*   Shapes:    none.
 *   Units:     none.
 *   Threads:   any.
 *   Errors:    those of every function. */

/* Describes the latest failed call of the calling thread: with status ANNULUS_OK if there was none. Also after a failed
 * annulus_comm_create.
 *   Ownership: strings stay valid until the next failed call of this thread. */
ANNULUS_API annulus_status_t annulus_last_error(annulus_error_t* error);

/* Describes the verdict that ended the communicator: with status ANNULUS_OK as long as it is alive. A verdict never
 * changes. Waits for no rank; with ANNULUS_TRACE the first call to learn of a verdict writes the trace; others wait.
 *   Ownership: strings stay valid until the communicator is destroyed. */
ANNULUS_API annulus_status_t annulus_comm_verdict(const annulus_comm_t* comm, annulus_error_t* error);

/* Fails all pending and later work on every rank with ANNULUS_ABORTED, and `reason` in the message; NULL gives none.
 * Returns within 50 ms. Has no effect after another verdict.
 *   Ownership: the reason is copied; what does not fit into 900 bytes is cut. */
ANNULUS_API annulus_status_t annulus_comm_abort(annulus_comm_t* comm, const char* reason);

/* -- Configuration ----------------------------------------------------------------------------------------------- */
/*   Shapes:    none.
 *   Threads:   any, while no other thread changes the environment. */

/* Fills the first `struct_bytes` bytes of `config`, its sizeof, so that all values come from `sources`
 * (ANNULUS_FROM_...), which annulus_comm_create reads.
 *   Units:     bytes.
 *   Ownership: the caller's; nothing must be freed.
 *   Errors:    ANNULUS_UNSUPPORTED  unknown sources. */
ANNULUS_API annulus_status_t annulus_config_init(annulus_config_t* config, size_t struct_bytes, uint32_t sources);

/* Writes to `value` what the setting called `name` will be in a communicator of this `config`, as a string: "rank" is
 * "-1" where nothing gives it. Names are those of docs/tuning.md. A NULL config is that of annulus_comm_create.
 *   Units:     value_bytes: room in `value`, in bytes, with the string's end.
 *   Ownership: the caller's.
 *   Errors:    ANNULUS_INVALID_ARGUMENT  the config is wrong, there is no such setting, it is the job key, or its value
 *                                        does not fit. */
ANNULUS_API annulus_status_t annulus_config_value(const annulus_config_t* config, const char* name, char* value,
                                                  size_t value_bytes);

/* -- Communicators ----------------------------------------------------------------------------------------------- */
/*   Shapes:    none.
 *   Units:     ranks.
 *   Ownership: a communicator is the caller's until annulus_comm_destroy.
 *   Threads:   any; annulus_comm_destroy last.
 *   Errors:    those of every function. */

/* Joins the job and connects to the peers; every rank must call it. NULL stands for a config with both sources. Blocks
 * up to connect_timeout_ms.
 *   Errors:    ANNULUS_INVALID_ARGUMENT  a value is wrong: the message names it and what is allowed.
 *              ANNULUS_UNSUPPORTED       a field or a transport that this version or machine does not have.
 *              ANNULUS_AUTH_FAILED, ANNULUS_MISMATCH, ANNULUS_TIMEOUT, ANNULUS_PEER_LOST, ANNULUS_PROTOCOL_ERROR,
 *              ANNULUS_SYSTEM_ERROR: the ranks could not meet, or their settings differ. */
ANNULUS_API annulus_status_t annulus_comm_create(const annulus_config_t* config, annulus_comm_t** comm);

/* Forms new communicators out of the ranks of `comm`, all of which must call it: ranks with equal `colour` share one,
 * ranked by (key, rank in comm). A rank with a negative colour joins none and gets NULL. The new communicator has the
 * settings of `comm`, but not its operations, and is independent of it: either may be destroyed first. Blocks up to
 * twice timeout_ms, then connect_timeout_ms, and 2 s more until a failure has its verdict.
 *   Errors:    as annulus_comm_create, and those of collectives. */
ANNULUS_API annulus_status_t annulus_comm_split(annulus_comm_t* comm, int colour, int key, annulus_comm_t** newcomm);

/* annulus_comm_split into one communicator with the same ranks: another queue of work, independent of `comm`'s.
 *   Errors:    as annulus_comm_split. */
ANNULUS_API annulus_status_t annulus_comm_dup(annulus_comm_t* comm, annulus_comm_t** newcomm);

/* Leaves the job and frees the communicator and its requests. Pending work ends with ANNULUS_ABORTED. Bounded in time,
 * save for callbacks. NULL is allowed. Unless the call is refused, `comm` is no longer a valid handle, and a later
 * call with it is undefined.
 *   Errors:    ANNULUS_INVALID_ARGUMENT  refused: a callback or a reduction function of this communicator called it. */
ANNULUS_API annulus_status_t annulus_comm_destroy(annulus_comm_t* comm);

/* Write the caller's rank, the number of ranks, and the same among the ranks of this host. */
ANNULUS_API annulus_status_t annulus_comm_rank(const annulus_comm_t* comm, int* rank);
ANNULUS_API annulus_status_t annulus_comm_size(const annulus_comm_t* comm, int* size);
ANNULUS_API annulus_status_t annulus_comm_local_rank(const annulus_comm_t* comm, int* local_rank);
ANNULUS_API annulus_status_t annulus_comm_local_size(const annulus_comm_t* comm, int* local_size);

/* -- Counters ---------------------------------------------------------------------------------------------------- */
/* They do not disturb work in progress. Each number is correct by itself, but may count work that another does not yet.
 *   Shapes:    none.
 *   Units:     as in each field.
 *   Ownership: the struct is the caller's; its strings are never freed.
 *   Threads:   any.
 *   Errors:    those of every function. */

/* Fills in the communicator's counters. */
ANNULUS_API annulus_status_t annulus_comm_counters(const annulus_comm_t* comm, annulus_counters_t* counters);

/* The same for the links with rank `peer`. */
ANNULUS_API annulus_status_t annulus_comm_peer_counters(const annulus_comm_t* comm, int peer,
                                                        annulus_peer_counters_t* counters);

/* The same for the links of the transport at `index`: 0, 1 and so on, until transport is "". */
ANNULUS_API annulus_status_t annulus_comm_transport_counters(const annulus_comm_t* comm, int index,
                                                             annulus_transport_counters_t* counters);

/* Fills in the communicator's memory use. */
ANNULUS_API annulus_status_t annulus_comm_memory(const annulus_comm_t* comm, annulus_memory_t* memory);

/* Fills in how the communicator works on device memory. */
ANNULUS_API annulus_status_t annulus_comm_device(const annulus_comm_t* comm, annulus_device_t* device);

/* -- Registered memory ------------------------------------------------------------------------------------------- */
/* For buffers that are used repeatedly. Ranks of one host, and RDMA devices, read registered memory in place, without
 * the copy through staging slots, in all that is large enough to be sent in slices. Any mix of registered and other
 * buffers works; results are the same. Registered memory belongs to the process. Each registration holds a descriptor.
 * A forked child shares the memory; what the child frees or deregisters stays registered in the parent. A call that
 * sends from registered memory returns when the peers have read it.
 *   Shapes:    none.
 *   Units:     bytes.
 *   Ownership: memory must not be freed or deregistered while work uses it.
 *   Threads:   any.
 *   Errors:    ANNULUS_SYSTEM_ERROR  the system refused; too few file descriptors, for example. */

/* Allocates `bytes` of zeroed memory, aligned to a page. Free it with annulus_mem_free, which allows NULL. */
ANNULUS_API annulus_status_t annulus_mem_alloc(size_t bytes, void** memory);
ANNULUS_API annulus_status_t annulus_mem_free(void* memory);

/* The same in the memory of GPU `device`, where ranks share it (docs/device_memory.md), in units of 2 MiB as a rule.
 * The program must use CUDA before. No other GPU of the process reaches it. annulus_mem_free frees it, too.
 *   Errors:    ANNULUS_UNSUPPORTED  no driver, or one without virtual memory; ANNULUS_SYSTEM_ERROR  no such GPU. */
ANNULUS_API annulus_status_t annulus_mem_alloc_device(size_t bytes, int device, void** memory);

/* Registers the whole pages within existing memory; its address and content stay the same. Memory without a whole page
 * is accepted, but not shared; what overlaps registered memory is refused. annulus_mem_deregister undoes it, with the
 * same address. Accepts private anonymous mappings, as of mmap, or of malloc for large blocks; other memory works too.
 *   Ownership: deregister it before it is freed or resized: else peers read the old pages in place of what comes there.
 *   Threads:   during either call no thread may write to the memory, and the process must not fork.
 *   Errors:    ANNULUS_UNSUPPORTED  memory of another sort. */
ANNULUS_API annulus_status_t annulus_mem_register(void* memory, size_t bytes);
ANNULUS_API annulus_status_t annulus_mem_deregister(void* memory);

/* -- Operations of the user's ------------------------------------------------------------------------------------ */
/* User-defined operations belong to a communicator and are numbered from 16, in the order in which they are created; a
 * number is not used again. Every rank must create and destroy the same ones in the same order. Up to 64 may exist at a
 * time. They work in every collective that reduces, with any type.
 *   Shapes:    none.
 *   Units:     none.
 *   Ownership: operations are freed with their communicator.
 *   Threads:   any; ranks must agree on the order.
 *   Errors:    ANNULUS_INVALID_ARGUMENT  there are 64 already, or no such operation. */

/* A sum to which each rank contributes its elements times its own `factor`, which may differ from rank to rank. Floats
 * are multiplied by the factor as a float32 (float64: as it is) and rounded to their type once, then added as with
 * ANNULUS_SUM. For integers the type must be able to hold the factor, else the collective returns
 * ANNULUS_INVALID_ARGUMENT; products wrap around. */
ANNULUS_API annulus_status_t annulus_op_create_premul_sum(annulus_comm_t* comm, double factor, annulus_op_t* op);

/* A reduction by `fn`.
 *   Ownership: `context` is passed to fn. When nothing uses the operation any more, after annulus_op_destroy or in
 *              annulus_comm_destroy, release(context) is called once, by a thread that is in a call on the communicator
 *              or by the communicator's own; it must not use the communicator. A NULL release is not called. When this
 *              call fails, context stays the caller's. */
ANNULUS_API annulus_status_t annulus_op_create(annulus_comm_t* comm, annulus_reduce_fn fn, void* context,
                                               void (*release)(void* context), annulus_op_t* op);

/* Later calls with `op` are refused; work that is already queued still uses it. */
ANNULUS_API annulus_status_t annulus_op_destroy(annulus_comm_t* comm, annulus_op_t op);

/* -- Collectives: blocking --------------------------------------------------------------------------------------- */
/* Conveniences for annulus_run, which has all options. Buffers must be aligned as annulus_type_t says, and may overlap
 * only in the in-place form given in each comment. A count of 0 is allowed; it only keeps the order of calls.
 *   Units:     elements.
 *   Ownership: buffers are lent until the call returns.
 *   Threads:   any; calls take turns, and ranks must agree on their order.
 *   Errors:    a refusal, mostly ANNULUS_INVALID_ARGUMENT, ANNULUS_UNSUPPORTED or ANNULUS_OUT_OF_MEMORY; or the
 *              verdict, mostly ANNULUS_MISMATCH, ANNULUS_TIMEOUT, ANNULUS_PEER_LOST or ANNULUS_ABORTED. The error's
 *              scope says which of the two it is. */

/* recvbuf[i] = reduction over ranks of sendbuf[i]; `count` elements each. In place: sendbuf == recvbuf.
 *   Shapes:    both buffers hold `count` elements. */
ANNULUS_API annulus_status_t annulus_allreduce(annulus_comm_t* comm, const void* sendbuf, void* recvbuf, size_t count,
                                               annulus_type_t type, annulus_op_t op);

/* Rank r gets the reduction of elements [r * recvcount, (r + 1) * recvcount) of everyone's sendbuf, which holds
 * size * recvcount elements. In place: recvbuf == sendbuf + rank * recvcount elements.
 *   Shapes:    sendbuf holds size * recvcount elements, recvbuf recvcount. */
ANNULUS_API annulus_status_t annulus_reduce_scatter(annulus_comm_t* comm, const void* sendbuf, void* recvbuf,
                                                    size_t recvcount, annulus_type_t type, annulus_op_t op);

/* Every rank gets all ranks' sendbufs, in rank order; recvbuf holds size * sendcount elements.
 * In place: sendbuf == recvbuf + rank * sendcount elements.
 *   Shapes:    sendbuf holds sendcount elements, recvbuf size * sendcount. */
ANNULUS_API annulus_status_t annulus_allgather(annulus_comm_t* comm, const void* sendbuf, void* recvbuf,
                                               size_t sendcount, annulus_type_t type);

/* Every rank's recvbuf gets the root's sendbuf. sendbuf is read on the root only. In place: sendbuf == recvbuf. As in
 * scatter and gather, no rank waits for one that only sends. When ranks disagree on the root, some or all may return
 * ANNULUS_OK, and the next call that synchronises them reports the mismatch.
 *   Shapes:    both buffers hold `count` elements; sendbuf is unused except on the root. */
ANNULUS_API annulus_status_t annulus_broadcast(annulus_comm_t* comm, const void* sendbuf, void* recvbuf, size_t count,
                                               annulus_type_t type, int root);

/* The root's recvbuf gets the reduction; it is written on the root only. In place on the root: sendbuf == recvbuf.
 *   Shapes:    both buffers hold `count` elements; recvbuf is unused except on the root. */
ANNULUS_API annulus_status_t annulus_reduce(annulus_comm_t* comm, const void* sendbuf, void* recvbuf, size_t count,
                                            annulus_type_t type, annulus_op_t op, int root);

/* Returns once every rank has called it.
 *   Shapes:    none. */
ANNULUS_API annulus_status_t annulus_barrier(annulus_comm_t* comm);

/* The root's recvbuf gets all ranks' sendbufs, in rank order: size * count elements. recvbuf is written on the root
 * only. In place on the root: sendbuf == recvbuf + rank * count elements.
 *   Shapes:    sendbuf holds `count` elements, the root's recvbuf size * count. */
ANNULUS_API annulus_status_t annulus_gather(annulus_comm_t* comm, const void* sendbuf, void* recvbuf, size_t count,
                                            annulus_type_t type, int root);

/* Rank r's recvbuf gets elements [r * count, (r + 1) * count) of the root's sendbuf, which holds size * count elements
 * and is read on the root only. In place on the root: recvbuf == sendbuf + rank * count elements.
 *   Shapes:    the root's sendbuf holds size * count elements, recvbuf `count`. */
ANNULUS_API annulus_status_t annulus_scatter(annulus_comm_t* comm, const void* sendbuf, void* recvbuf, size_t count,
                                             annulus_type_t type, int root);

/* Rank r gets elements [r * count, (r + 1) * count) of rank s's sendbuf at s * count of its recvbuf; both buffers hold
 * size * count elements. Not in place.
 *   Shapes:    both buffers hold size * count elements. */
ANNULUS_API annulus_status_t annulus_alltoall(annulus_comm_t* comm, const void* sendbuf, void* recvbuf, size_t count,
                                              annulus_type_t type);

/* -- Messages ---------------------------------------------------------------------------------------------------- */
/* From one rank to another. The n-th send to a rank with a tag matches that rank's n-th receive from this one with that
 * tag, or an earlier receive from any rank or with any tag; count and type must agree. These functions have the tag 0.
 * What nobody asks for yet holds up nothing, within limits (docs/api.md). Messages wait for no other ranks and for no
 * collectives. A send is done when the buffer may be used again; large ones wait for the receive. A message ends at
 * most timeout_ms after the one before it of the same ranks and tag. Needs links between all ranks (mesh_ranks).
 *   Shapes:    the buffer holds `count` elements.
 *   Units:     elements.
 *   Ownership: buffers are lent until the call returns, or the request is done.
 *   Threads:   any; messages of several threads to one peer need an order, or tags, of their own.
 *   Errors:    as blocking collectives. */

ANNULUS_API annulus_status_t annulus_send(annulus_comm_t* comm, const void* sendbuf, size_t count, annulus_type_t type,
                                          int peer);
ANNULUS_API annulus_status_t annulus_recv(annulus_comm_t* comm, void* recvbuf, size_t count, annulus_type_t type,
                                          int peer);

/* Sends to rank `dest` and receives from rank `source`, both at once: ranks that exchange messages, or pass them around
 * a ring, need not agree on who sends first. Neither may be this rank. The peers may use other functions for their
 * part. The buffers must not overlap. When either part is refused, neither is made.
 *   Shapes:    sendbuf holds sendcount elements, recvbuf recvcount. */
ANNULUS_API annulus_status_t annulus_sendrecv(annulus_comm_t* comm, const void* sendbuf, size_t sendcount, int dest,
                                              void* recvbuf, size_t recvcount, int source, annulus_type_t type);

ANNULUS_API annulus_status_t annulus_send_async(annulus_comm_t* comm, const void* sendbuf, size_t count,
                                                annulus_type_t type, int peer, annulus_request_t** request);
ANNULUS_API annulus_status_t annulus_recv_async(annulus_comm_t* comm, void* recvbuf, size_t count, annulus_type_t type,
                                                int peer, annulus_request_t** request);

/* -- Collectives: parts of different sizes ----------------------------------------------------------------------- */
/* As allgather and so on, but the parts of a buffer with one part per rank may differ in size. Rank r's part has
 * counts[r] elements and starts at element offsets[r], or behind the previous part when offsets is NULL. Both arrays
 * have an entry per rank and are read before the call returns. Parts must not overlap. Two ranks that exchange a part
 * must agree on its count. In place: the own part is at its position in the larger buffer. A buffer of which no part
 * has elements may be NULL.
 *   Shapes:    a buffer with parts reaches to the end of its last part; the other holds the given count.
 *   Units:     elements, also of offsets.
 *   Ownership: as blocking collectives; the arrays are read before the call returns.
 *   Threads:   as blocking collectives.
 *   Errors:    as blocking collectives. */

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
/* As above, but these return once the work is queued. It is done in the order of the calls, by the threads that wait
 * for requests or in blocking calls; what they leave alone is done by a thread of the communicator.
 *   Shapes:    as the blocking forms.
 *   Units:     elements.
 *   Ownership: buffers are lent until the request is done. Free each request with annulus_request_free.
 *   Threads:   any; ranks must agree on the order.
 *   Errors:    of the call: it was refused, or the communicator has ended. Of the work: those of the blocking
 *              forms, from annulus_request_wait. */

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

/* -- Calls as data ----------------------------------------------------------------------------------------------- */
/* The named functions are conveniences for these.
 *   Shapes:    as the function of the call's kind.
 *   Units:     elements, milliseconds.
 *   Threads:   any; ranks must agree on the order. */

/* Makes the call and returns its outcome.
 *   Ownership: buffers are lent until the call returns.
 *   Errors:    as blocking collectives; ANNULUS_UNSUPPORTED for a field that is not supported yet. */
ANNULUS_API annulus_status_t annulus_run(annulus_comm_t* comm, const annulus_call_t* call);

/* Queues calls[0] to calls[ncalls - 1], all or none: when one is refused, none is queued. All have the struct_bytes of
 * the first. *request is done when all calls are, and is written before any callback is called; `request` may be NULL,
 * then callbacks and the verdict tell of the end. With ncalls = 0 nothing is queued, and *request is done at once.
 *
 * Several calls are a group. Its allreduces of one type and operation are sent as one, straight from and to their
 * buffers, and give the same bits as separate calls; so many small tensors cost little more than one large one. The
 * calls may run in any order: none may use what another one writes. All ranks must submit the same collectives in the
 * same order, in the same groups; messages need agree with their peer only.
 *
 * With priorities, rank 0's queue decides for all ranks, so all must queue the same collectives in the same order with
 * the same priorities; blocking collectives take their turn in the queue too. All ranks must also wait at the same
 * places. If a rank waits for call A (a blocking call, a wait, tests in a loop) before it queues a later call B of a
 * higher priority, rank 0 must do so too; otherwise rank 0 may choose B while that rank waits for A, and both wait
 * until the deadline. It is safe to queue all calls first, and then to wait.
 *
 * A call with a stream is ordered by it: its work begins when what the stream held before is done, and what the stream
 * gets later waits until the ranks have done their part. This returns at once; while 16 such calls of a communicator
 * are under way on a GPU it waits, up to their timeout. The deadline counts from when the stream has come to the call.
 * When the communicator ends, the stream goes on all the same, with undefined output. A request is done, and `done`
 * called, when the ranks have done their part; a result on a GPU may be read behind the call in its stream, or once
 * that was synchronized. A group's calls share one stream. All ranks give a collective a stream, or none. While the
 * stream is captured into a CUDA graph, `request` and `done` are NULL, and each launch of the graph makes the call.
 *   Ownership: buffers are lent until the calls are done and their stream, if any, has passed them; the structs and
 *              arrays are read before this returns.
 *   Errors:    as the asynchronous forms; ANNULUS_UNSUPPORTED for a field or stream that is not supported, which the
 *              message names; ANNULUS_TIMEOUT when no such call ended in time to make room for this one. */
ANNULUS_API annulus_status_t annulus_submit(annulus_comm_t* comm, const annulus_call_t* calls, size_t ncalls,
                                            annulus_request_t** request);

/* -- Requests ---------------------------------------------------------------------------------------------------- */
/* These functions do the work that they wait for, and may do other queued work of the communicator with it, whoever
 * queued it; so they may call reduction functions and the release functions of operations.
 *   Shapes:    none.
 *   Units:     milliseconds.
 *   Ownership: a request is the caller's until annulus_request_free or the end of its communicator.
 *   Threads:   any; several may wait for one request.
 *   Errors:    ANNULUS_INVALID_ARGUMENT  the request was freed, never was one, or its communicator was destroyed; the
 *                                        message says which. */

/* Waits up to `timeout_ms` (-1: until it is done, which deadlines bound) and returns the outcome of the work, or
 * ANNULUS_IN_PROGRESS when it has none yet; the request may then be waited for again. An outcome stays the same, and
 * may be asked for until the request is freed.
 *   Errors:    of the work: those of the blocking forms. */
ANNULUS_API annulus_status_t annulus_request_wait(annulus_request_t* request, int64_t timeout_ms);

/* annulus_request_wait with a timeout of 0, which drives the work by one step. */
ANNULUS_API annulus_status_t annulus_request_test(annulus_request_t* request);

/* Gives the request back, waited for or not. Freeing one that is not done waits for it first. NULL is allowed. */
ANNULUS_API annulus_status_t annulus_request_free(annulus_request_t* request);

#ifdef __cplusplus
}
#endif

#endif /* ANNULUS_H_ */
