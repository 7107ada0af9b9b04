// Errors as MPI's codes, whose text MPI_Error_string gives: the latest failure of the calling thread, or a function
// that is missing.
//
// Threads: any.
#pragma once

#include <annulus.h>

#include <exception>
#include <new>
#include <string>
#include <utility>

#include "frameworks/mpi/abi.h"

namespace annulus_mpi {

// What a function of MPI failed with; Guarded makes a code of it.
class Error : public std::exception {
 public:
  Error(intptr_t error_class, std::string text) : class_(static_cast<int>(error_class)), text_(std::move(text)) {}
  int error_class() const { return class_; }
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  const int class_;
  const std::string text_;
};

// Keeps `text` as this thread's latest failure and returns the code, which is the class. Where there is no memory for
// the text, the code's name stands for it.
int Fail(const char* function, int error_class, const char* text) noexcept;

// Runs `body` of an MPI function; nothing is thrown beyond it.
template <typename Body>
int Guarded(const char* function, const Body& body) {
  try {
    body();
    return kSUCCESS;
  } catch (const Error& error) {
    return Fail(function, error.error_class(), error.what());
  } catch (const std::bad_alloc&) {
    return Fail(function, kERR_NO_MEM, "out of memory");
  } catch (const std::exception& error) {
    return Fail(function, kERR_INTERN, error.what());
  }
}

// Throws unless the condition holds.
void Require(bool condition, intptr_t error_class, const std::string& text);

// The text of a code.
std::string TextOf(int code);

// The class of a code, which is the code unless a function is missing.
int ClassOf(int code);

// The class of MPI for a status of Annulus.
int ClassOfStatus(annulus_status_t status);

}  // namespace annulus_mpi
