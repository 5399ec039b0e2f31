#include "kernels/core/op_graphs.h"

#include <cstddef>
#include <cstring>

#include "absl/status/status.h"

#include "kernels/core/exec_context.h"
#include "kernels/core/round_up.h"

namespace baton::kernels {
namespace {

// Of any parameter.
constexpr size_t kAlignment = alignof(std::max_align_t);

constexpr size_t Aligned(size_t bytes) { return RoundUp(bytes, kAlignment); }

}  // namespace

void GatheredOps::Add(const ExecContext& context, Call call, const void* params, size_t bytes) {
  const size_t begin = bytes_.size();
  const size_t at = begin + Aligned(sizeof(call));
  bytes_.resize(at + Aligned(bytes));
  std::memcpy(bytes_.data() + begin, static_cast<const void*>(&call), sizeof(call));
  std::memcpy(bytes_.data() + at, params, bytes);
  calls_.push_back({.context = context, .call = call, .params = at});
}

absl::Status GatheredOps::Replay() const {
  for (const Kept& kept : calls_) {
    if (absl::Status status = kept.call(kept.context, bytes_.data() + kept.params); !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

void GatheredOps::Clear() {
  calls_.clear();
  bytes_.clear();
}

absl::Status OpGraphs::Flush() {
  if (ops_.empty()) {
    return absl::OkStatus();
  }
  const bool gathering = gathering_;
  gathering_ = false;
  absl::Status status = Launch(ops_);
  gathering_ = gathering;
  ops_.Clear();
  return status;
}

absl::Status OpGraphs::End() {
  gathering_ = false;
  return Flush();
}

}  // namespace baton::kernels
