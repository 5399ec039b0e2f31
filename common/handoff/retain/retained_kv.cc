#include "common/handoff/retain/retained_kv.h"

#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "common/engine/kv_sink.h"
#include "common/engine/request.h"

namespace baton::handoff {
namespace {

engine::ReadyKv AsReady(const RetainedKv::Group& group) {
  engine::ReadyKv ready{.layer_begin = group.layer_begin,
                        .layer_end = group.layer_end,
                        .page_begin = group.page_begin,
                        .page_count = group.page_count,
                        .pages = {}};
  const size_t pages = static_cast<size_t>(group.layer_end - group.layer_begin) *
                       static_cast<size_t>(group.page_count);
  const size_t page_bytes = pages == 0 ? 0 : group.bytes.size() / pages;
  ready.pages.reserve(pages);
  for (size_t page = 0; page < pages; ++page) {
    ready.pages.push_back(std::span(group.bytes).subspan(page * page_bytes, page_bytes));
  }
  return ready;
}

}  // namespace

RetainedKv::Group CopyPages(const engine::ReadyKv& ready) {
  RetainedKv::Group group{.layer_begin = ready.layer_begin,
                          .layer_end = ready.layer_end,
                          .page_begin = ready.page_begin,
                          .page_count = ready.page_count,
                          .bytes = {}};
  size_t bytes = 0;
  for (const std::span<const std::byte> page : ready.pages) {
    bytes += page.size();
  }
  group.bytes.reserve(bytes);
  for (const std::span<const std::byte> page : ready.pages) {
    group.bytes.insert(group.bytes.end(), page.begin(), page.end());
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
