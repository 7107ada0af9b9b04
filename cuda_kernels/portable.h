// What lets one source be compiled for GPUs and for the host.
//
// Threads: none of its own.
#pragma once

#if defined(__CUDACC__)
#define ANNULUS_PORTABLE __host__ __device__ __forceinline__
#define ANNULUS_UNROLL _Pragma("unroll")
#else
#define ANNULUS_PORTABLE inline
#define ANNULUS_UNROLL
#endif
