// cuBLASLt, loaded when the program runs.
#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/cuda/libraries/dynamic_library.h"
#include "kernels/cuda/libraries/library_paths.h"

namespace baton::kernels::cuda {

// The oldest cuBLASLt that fits the headers of this build, as cublasLtGetVersion counts: 13.0.0.
inline constexpr size_t kOldestCublasLt = 130000;

// The functions that Baton calls. Immutable; the functions are as thread-safe as cuBLASLt's: a
// handle may be used by several threads, a descriptor by one.
struct CublasLtApi {
  DynamicLibrary library;
  size_t version = 0;

  decltype(&cublasLtGetStatusName) status_name = nullptr;
  decltype(&cublasLtGetStatusString) status_string = nullptr;
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtMatmulDescCreate) operation_create = nullptr;
  decltype(&cublasLtMatmulDescDestroy) operation_destroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) operation_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
  decltype(&cublasLtMatrixLayoutSetAttribute) layout_set = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;

  // "13.1.0 of /usr/local/cuda/.../libcublasLt.so.13"; for logs.
  std::string Description() const;
  // OK, or an error that says what was done and what cuBLASLt says of it: kUnimplemented for what
  // it does not support, kUnavailable where the driver or the device is missing, kResourceExhausted
  // without memory, else kInternal.
  absl::Status ToStatus(cublasStatus_t status, const char* doing) const;
};

// Loads the library that `search` finds first. kNotFound without one, kFailedPrecondition for one
// older than kOldestCublasLt; both say which file.
absl::StatusOr<std::shared_ptr<const CublasLtApi>> LoadCublasLt(const LibrarySearch& search);

}  // namespace baton::kernels::cuda
