#include "common/worker/prompt_layout.h"

#include <cstdint>

namespace baton::worker {

kv::v1::KvLayout PromptLayout(const kv::v1::KvLayout& worker, const engine::HandoffShape& shape) {
  kv::v1::KvLayout layout = worker;
  layout.set_policy(shape.policy);
  layout.set_format(shape.format);
  layout.set_format_version(shape.format_version);
  layout.set_page_tokens(static_cast<uint32_t>(shape.page_tokens));
  layout.set_shipped_layers(static_cast<uint32_t>(shape.shipped_layers));
  layout.set_hidden_page_bytes(static_cast<uint64_t>(shape.hidden_page_bytes));
  layout.set_calibration_digest(shape.calibration_digest);
  layout.set_page_bytes(static_cast<uint64_t>(shape.window.page_bytes));
  return layout;
}

}  // namespace baton::worker
