// MPI's return codes as typed errors. Only the MPI thread calls MPI.
#pragma once

#include <mpi.h>

#include <string>

#include "dtrain/base/error.h"

namespace dtrain::comm {

inline std::string mpi_error_text(int code) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) return "error " + std::to_string(code);
  return std::string(text, static_cast<std::size_t>(length));
}

inline void mpi_call(int code, const char* what) {
  if (code != MPI_SUCCESS) throw CommError(std::string(what) + " failed: " + mpi_error_text(code));
}

}  // namespace dtrain::comm
