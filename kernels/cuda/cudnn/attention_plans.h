// Compiled attention, shape by shape, and how it is run.
#pragma once

#include <cudnn_graph.h>
#include <driver_types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "absl/container/node_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/cuda/cudnn/attention_graph.h"
#include "kernels/cuda/cudnn/attention_plan.h"
#include "kernels/cuda/cudnn/cudnn_api.h"
#include "kernels/cuda/cudnn/descriptor.h"
#include "kernels/cuda/libraries/library_paths.h"

namespace baton::kernels::cuda {

// Sizes that plans are compiled for, because a plan for every length would cost 45 to 80 ms each:
// powers of two, which the sequences of a call must not exceed. A plan for many keys takes no
// longer over few (docs/kernels/dense.md), so all are for kMostTokens of them.
struct AttentionBucket {
  static constexpr int64_t kLeastTokens = 512;
  static constexpr int64_t kMostTokens = int64_t{128} << 10;
  static constexpr int64_t kMostSequences = 16;

  int64_t batch = 0;
  int64_t queries = 0;  // of a sequence

  friend bool operator==(const AttentionBucket&, const AttentionBucket&) = default;
};

// The smallest bucket with room for so many sequences of up to so many rows. More than
// kMostSequences have to be given in several calls and get a bucket of as many. Nothing without
// rows, for more rows than keys, and for more than kMostTokens.
std::optional<AttentionBucket> BucketFor(int64_t sequences,
                                         int64_t max_sequence_rows,
                                         int64_t max_keys);

// A graph's kernel, compiled and loaded, with what it was made from.
struct AttentionPlan {
  AttentionGraph graph;
  AttentionEngine engine;
  CudnnDescriptor plan;
  size_t scratch_bytes = 0;
};

// An argument of a plan: memory of the device, aligned to 16 bytes, or of the host as
// AttentionTensor says. Outputs are written to.
struct AttentionArgument {
  AttentionTensor tensor;
  const void* address = nullptr;
};

// Owns cuDNN's handle on the current device, for one stream, and the plans of the shapes that were
// asked for. Not thread-safe.
class AttentionPlans {
 public:
  // kNotFound or kFailedPrecondition without a library (LoadCudnn), kUnavailable without a device.
  static absl::StatusOr<std::unique_ptr<AttentionPlans>> Create(const LibrarySearch& search,
                                                                cudaStream_t stream);

  // The plan of a shape, compiled when it is asked for first, and those of all other batches with
  // it: how many prompts a step has changes from one to the next, and a step in which a plan is
  // compiled makes every sequence wait. kUnimplemented, naming the shape, where cuDNN has no kernel
  // for it but the generic one; that, too, is found out once. Lives as long as this object.
  absl::StatusOr<const AttentionPlan*> Find(const AttentionShape& shape);

  // Puts a call on the stream. `scratch` has the plan's scratch_bytes, aligned to 256 bytes, and
  // belongs to the call until it is done; arguments on the host are read before this returns.
  absl::Status Run(const AttentionPlan& plan,
                   std::span<const AttentionArgument> arguments,
                   std::byte* scratch) const;

  // Plans that were compiled.
  int64_t compiled() const;
  // As CudnnApi::Description.
  const CudnnApi& api() const { return *api_; }

 private:
  using Handle = std::unique_ptr<cudnnContext, decltype(&cudnnDestroy)>;

  AttentionPlans(std::shared_ptr<const CudnnApi> api, Handle handle, CudnnDescriptor device);
  absl::StatusOr<AttentionPlan> Compile(const AttentionShape& shape) const;
  void CompileOtherBatches(AttentionShape shape);

  std::shared_ptr<const CudnnApi> api_;
  Handle handle_;
  CudnnDescriptor device_;
  absl::node_hash_map<AttentionShape, absl::StatusOr<AttentionPlan>> plans_;
};

}  // namespace baton::kernels::cuda
