// A back end in use.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "kernels/core/buffer.h"
#include "kernels/core/device_link.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/thread_pool.h"
#include "kernels/cuda/cuda_session.h"
#include "kernels/ops/op_table.h"

namespace baton::kernels {

// Owns what ops work with: threads of the host and their scratch memory, or a queue of the device;
// must outlive whoever calls ops. Everything in the context belongs to the executor thread.
class Backend {
 public:
  // `device` as SelectOps takes it; `threads` counts the executor thread. On a device the threads
  // only sample. kResourceExhausted when the device lacks memory, else SelectOps' errors.
  static absl::StatusOr<std::unique_ptr<Backend>> Open(std::string_view device, int threads);

  const OpTable& ops() const { return ops_; }
  const ExecContext& exec() const { return exec_; }
  // Loads the libraries of the machine that ops look for, which takes up to seconds; else the first
  // op that needs one does. None on the host.
  std::vector<cuda::FoundLibrary> LoadLibraries() const;
  // Bytes that are free of `share` of the device's memory; below 0 when more is taken already, by
  // others too. kFailedPrecondition on the host.
  absl::StatusOr<int64_t> MemoryLeft(double share) const;
  // Makes links between this device and others, by the executor thread; they may be used by any.
  // kFailedPrecondition on the host, else as the machine's library says.
  absl::StatusOr<std::unique_ptr<DeviceLinks>> MakeLinks() const;

 private:
  Backend(const OpTable& ops, int threads) : ops_(ops), pool_(threads) {}

  const OpTable& ops_;
  ThreadPool pool_;
  Buffer workspace_;
  std::unique_ptr<cuda::Session> session_;  // null on the host
  ExecContext exec_;
};

}  // namespace baton::kernels
