#include "services/lab/table/working_pages.h"

#include <cstddef>
#include <cstring>

#include "common/kv/codec/dense_step_kv.h"
#include "common/kv/codec/kv_format.h"
#include "kernels/core/dtype.h"

namespace baton::lab {

WorkingPages::WorkingPages(const kv::KvDimensions& dimensions,
                           kernels::DType dtype,
                           int64_t prompt_tokens,
                           int64_t max_tokens)
    : layers_(dimensions.layers) {
  layout_.kv_heads = dimensions.kv_heads;
  layout_.head_dim = dimensions.head_dim;
  layout_.dtype = dtype;
  prompt_pages_ = layout_.pages_for(prompt_tokens);
  full_pages_ = static_cast<int32_t>(prompt_tokens / layout_.page_tokens);
  run_pages_ = layout_.pages_for(max_tokens);
  int32_t next = 0;
  for (int32_t layer = 0; layer < layers_; ++layer) {
    const int32_t first = next;
    for (int32_t page = 0; page < prompt_pages_; ++page) {
      prompt_table_.push_back(next++);
    }
    for (int32_t page = 0; page < run_pages_; ++page) {
      run_table_.push_back(page < full_pages_ ? first + page : next++);
    }
  }
  memory_ = kernels::Buffer(static_cast<size_t>(next) * layout_.stride_bytes());
}

std::byte* WorkingPages::page(int32_t id) {
  return memory_.data() + static_cast<size_t>(id) * layout_.stride_bytes();
}

const std::byte* WorkingPages::page(int32_t id) const {
  return memory_.data() + static_cast<size_t>(id) * layout_.stride_bytes();
}

void WorkingPages::CopyLayers(const WorkingPages& source, int32_t layers) {
  const auto end = static_cast<size_t>(layers) * static_cast<size_t>(prompt_pages_);
  for (size_t i = 0; i < end; ++i) {
    std::memcpy(page(prompt_table_[i]), source.page(source.prompt_table_[i]), layout_.page_bytes());
  }
}

kv::DenseTable WorkingPages::prompt_table() const {
  return {.data = prompt_table_.data(), .stride = prompt_pages_, .layers = layers_};
}

size_t WorkingPages::PartialPage(int32_t layer, int32_t pages_per_layer) const {
  return static_cast<size_t>(layer) * static_cast<size_t>(pages_per_layer) +
         static_cast<size_t>(full_pages_);
}

kv::DenseTable WorkingPages::StartRun() {
  for (int32_t layer = 0; layer < layers_ && full_pages_ < prompt_pages_; ++layer) {
    const size_t source = PartialPage(layer, prompt_pages_);
    const size_t target = PartialPage(layer, run_pages_);
    std::memcpy(page(run_table_[target]), page(prompt_table_[source]), layout_.page_bytes());
  }
  return {.data = run_table_.data(), .stride = run_pages_, .layers = layers_};
}

int64_t WorkingPages::PromptBytes() const {
  return int64_t{prompt_pages_} * layers_ * static_cast<int64_t>(layout_.stride_bytes());
}

int64_t WorkingPages::SentBytes(int32_t layers) const {
  return int64_t{prompt_pages_} * layers * static_cast<int64_t>(layout_.page_bytes());
}

}  // namespace baton::lab
