// Processes that load libannulus_mpiwrapper.so as MPItrampoline does, and call it by its names.
//
// Threads: ForkRanks forks, so the test must have one thread.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>

#include "frameworks/mpi/abi.h"

namespace annulus_mpi {

class Wrapper {
 public:
  // Ends the test's process where the library cannot be loaded.
  Wrapper();

  // The address of a name, or null.
  void* Find(const std::string& name) const { return dlsym(library_, name.c_str()); }

  // Calls MPI_`name`, whose arguments must have the types of MPI: int, Handle, pointers.
  template <typename... Arguments>
  int operator()(const std::string& name, Arguments... arguments) const {
    void* const found = Find("MPIABI_" + name);
    EXPECT_NE(found, nullptr) << name;
    return found == nullptr ? -1 : reinterpret_cast<int (*)(Arguments...)>(found)(arguments...);
  }

  // What MPI_Error_string says of a code.
  std::string TextOf(int code) const;

 private:
  void* library_ = nullptr;
};

// The sum of a one from each rank.
void ExpectSum(const Wrapper& mpi, Handle comm, int expected);

// The class of the error that `code` stands for, and a part of its text.
void ExpectError(const Wrapper& mpi, int code, intptr_t error_class, const std::string& text);

// Calls `body` in `size` processes of one job, before MPI_Init; each must return without a failure of the test. Those
// that kill themselves are `lost`: the last so many ranks.
void ForkRanks(int size, const std::function<void(const Wrapper& mpi, int rank)>& body, int lost = 0);

// The same, between MPI_Init and MPI_Finalize.
void ForkInitialised(int size, const std::function<void(const Wrapper& mpi, int rank)>& body, int lost = 0);

}  // namespace annulus_mpi
