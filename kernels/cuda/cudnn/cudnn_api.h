// cuDNN's graph interface, loaded when the program runs.
#pragma once

#include <cudnn_graph.h>

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/cuda/libraries/dynamic_library.h"
#include "kernels/cuda/libraries/library_paths.h"

namespace baton::kernels::cuda {

// The oldest cuDNN whose attention graphs are known to work (performance.md 1.2), as
// cudnnGetVersion counts: 9.14.0.
inline constexpr size_t kOldestCudnn = 91400;

// The functions that Baton calls. Immutable; the functions are as thread-safe as cuDNN's: different
// descriptors may be used by different threads.
struct CudnnApi {
  DynamicLibrary library;
  size_t version = 0;

  decltype(&cudnnGetErrorString) error_string = nullptr;
  decltype(&cudnnGetLastErrorString) last_error_string = nullptr;
  decltype(&cudnnBackendCreateDescriptor) create_descriptor = nullptr;
  decltype(&cudnnBackendDestroyDescriptor) destroy_descriptor = nullptr;
  decltype(&cudnnBackendSetAttribute) set_attribute = nullptr;
  decltype(&cudnnBackendGetAttribute) get_attribute = nullptr;
  decltype(&cudnnBackendFinalize) finalize = nullptr;
  decltype(&cudnnBackendExecute) execute = nullptr;
  decltype(&cudnnCreate) create = nullptr;
  decltype(&cudnnDestroy) destroy = nullptr;
  decltype(&cudnnSetStream) set_stream = nullptr;

  // "9.19.0 of /usr/lib/.../libcudnn.so.9"; for logs.
  std::string Description() const;
  // OK, or an error that says what was done and what cuDNN says of it: kUnimplemented for what it
  // does not support, kUnavailable where the driver or the device is missing, else kInternal.
  absl::Status ToStatus(cudnnStatus_t status, const char* doing) const;
};

// Loads the library that `search` finds first. kNotFound without one, kFailedPrecondition for one
// older than kOldestCudnn; both say which file.
absl::StatusOr<std::shared_ptr<const CudnnApi>> LoadCudnn(const LibrarySearch& search);

}  // namespace baton::kernels::cuda
