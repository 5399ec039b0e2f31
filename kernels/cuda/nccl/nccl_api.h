// NCCL, loaded when the program runs.
#pragma once

#include <nccl.h>

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/cuda/libraries/dynamic_library.h"
#include "kernels/cuda/libraries/library_paths.h"

namespace baton::kernels::cuda {

// The oldest NCCL that this is known to work with (performance.md 2), as ncclGetVersion counts.
inline constexpr int kOldestNccl = NCCL_VERSION(2, 28, 3);

// The functions that Baton calls. Immutable; functions may be called by different threads for
// different communicators.
struct NcclApi {
  DynamicLibrary library;
  int version = 0;

  decltype(&ncclGetErrorString) error_string = nullptr;
  decltype(&ncclGetLastError) last_error = nullptr;
  decltype(&ncclGetUniqueId) unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) init_rank = nullptr;
  decltype(&ncclCommGetAsyncError) async_error = nullptr;
  decltype(&ncclCommAbort) abort = nullptr;
  decltype(&ncclMemAlloc) allocate = nullptr;
  decltype(&ncclMemFree) free = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) receive = nullptr;
  // Null where the library has none; CanRegister says so.
  decltype(&ncclCommRegister) register_buffer = nullptr;
  decltype(&ncclCommDeregister) deregister_buffer = nullptr;

  // "2.28.9 of /usr/lib/.../libnccl.so.2"; for logs.
  std::string Description() const;
  // kUnimplemented, naming them and the library, without the functions that register buffers.
  absl::Status CanRegister() const;
  // OK also for a call of a communicator that goes on in the background. kResourceExhausted for
  // memory that is not there, kUnavailable for a peer that can't be reached, else kInternal.
  absl::Status ToStatus(ncclResult_t result, std::string_view doing, ncclComm_t comm) const;
};

// Loads the library that `search` finds first, with NVLink multicast off (NCCL_NVLS_ENABLE=0 where
// the environment does not set it): pairs have no use for it. kNotFound without one,
// kFailedPrecondition for one older than kOldestNccl; both say which file.
absl::StatusOr<std::shared_ptr<const NcclApi>> LoadNccl(const LibrarySearch& search);

}  // namespace baton::kernels::cuda
