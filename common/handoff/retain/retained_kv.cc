#include "common/handoff/retain/retained_kv.h"

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "common/base/pieces.h"
#include "common/base/status_macros.h"
#include "common/engine/kv_sink.h"
#include "common/engine/request.h"
#include "kernels/core/landing_memory.h"

namespace baton::handoff {
namespace {

engine::ReadyKv AsReady(const RetainedKv::Group& group) {
  return {.layer_begin = group.layer_begin,
          .layer_end = group.layer_end,
          .page_begin = group.page_begin,
          .page_count = group.page_count,
          .memory = {group.bytes}};
}

}  // namespace

absl::StatusOr<RetainedKv::Group> CopyPages(const engine::ReadyKv& ready) {
  RetainedKv::Group group{.layer_begin = ready.layer_begin,
                          .layer_end = ready.layer_end,
                          .page_begin = ready.page_begin,
                          .page_count = ready.page_count,
                          .bytes = std::vector<std::byte>(BytesOf(ready.memory))};
  std::span<std::byte> target = group.bytes;
  kernels::LandingMemory& memory = ready.device != nullptr ? *ready.device : kernels::HostLanding();
  for (const std::span<const std::byte> piece : ready.memory) {
    BATON_RETURN_IF_ERROR(memory.Read(target.first(piece.size()), piece.data()));
    target = target.subspan(piece.size());
  }
  return group;
}

void ShipRetained(std::shared_ptr<const RetainedKv> kv,
                  std::shared_ptr<engine::KvSink> sink,
                  std::function<void(absl::Status status, int64_t wire_bytes)> done) {
  engine::KvSink& out = *sink;
  for (const RetainedKv::Group& group : kv->groups) {
    out.LayersReady(AsReady(group));
  }
  engine::CommitInfo commit = kv->commit;
  out.Commit(std::move(commit),
             [kv = std::move(kv), sink = std::move(sink), done = std::move(done)](
                 absl::Status status, int64_t wire_bytes) { done(std::move(status), wire_bytes); });
}

}  // namespace baton::handoff
