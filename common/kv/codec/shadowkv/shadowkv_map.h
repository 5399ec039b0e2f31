// Where the parts of one sequence lie in its memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/kv/codec/codec_context.h"
#include "kernels/kv_format/shadowkv.h"

namespace baton::kv {

// Upper layers of a SwiftKV model, side by side, whose keys are factored together.
struct JointGroup {
  int32_t begin = 0;  // stored layers [begin, end)
  int32_t end = 0;
  size_t coefficients = 0;  // of the prompt: offset in prompt memory
};

// The tails of a sequence with room for some tokens behind the prompt.
struct TailMap {
  // Where the tail of each layer begins, then the joint coefficients of each group's tail, then the
  // end.
  std::vector<size_t> begins;
  size_t bytes() const { return begins.back(); }
};

// Sizes and offsets, from the policy and the prompt's length alone. Prompt memory is the wire form:
// the layers one after another, each in whole pages, the first layer of a joint group with the
// group's coefficients behind it. Values apart are a memory of their own, of whole pages too: on
// the wire those of a layer follow its other pages. Without joint coefficients and with values in
// their place a layer is one page; else what is divided differs in size and pages are small.
// Immutable.
class ShadowKvMap {
 public:
  // `joint_rank`: of the factorization that the upper layers share; 0: every layer has its own, of
  // config.rank. Ranks above the keys' width are the width. The budget of `config` is that of a
  // layer of weight 1 in the calibration.
  ShadowKvMap(const CodecContext& context,
              const kernels::ShadowKvConfig& config,
              int32_t joint_rank,
              int64_t prompt_tokens);

  int32_t layers() const { return static_cast<int32_t>(layouts_.size()); }
  const kernels::ShadowKvPromptLayout& layout(int32_t kv_layer) const {
    return layouts_[static_cast<size_t>(kv_layer)];
  }
  const std::vector<kernels::ShadowKvPromptLayout>& layouts() const { return layouts_; }
  const std::vector<JointGroup>& groups() const { return groups_; }
  // The group that a layer belongs to, as an index; -1: none.
  int32_t group_of(int32_t kv_layer) const;
  // Layers that a layer is factored with, itself included.
  int64_t layers_factored(int32_t kv_layer) const;

  // Prompt memory.
  size_t prompt_begin(int32_t kv_layer) const {
    return prompt_begins_[static_cast<size_t>(kv_layer)];
  }
  size_t prompt_bytes() const { return prompt_begins_.back(); }
  // Bytes of a layer that are written, without values apart; the rest of its last page is padding.
  size_t used_bytes(int32_t kv_layer) const;

  // Memory of the prompt's values apart; all of this is 0 with values in their place.
  bool values_apart() const { return layouts_.front().config.values_apart; }
  size_t value_begin(int32_t kv_layer) const {
    return value_begins_[static_cast<size_t>(kv_layer)];
  }
  size_t value_bytes() const { return value_begins_.back(); }
  // Bytes of a layer's values that are written.
  size_t used_value_bytes(int32_t kv_layer) const;

  size_t page_bytes() const { return page_bytes_; }
  // Pages of a layer: of its prompt memory, then of its values.
  int32_t prompt_pages(int32_t kv_layer) const { return PagesOf(prompt_begins_, kv_layer); }
  int32_t value_pages(int32_t kv_layer) const { return PagesOf(value_begins_, kv_layer); }
  int32_t pages(int32_t kv_layer) const { return prompt_pages(kv_layer) + value_pages(kv_layer); }
  int32_t most_pages() const { return most_pages_; }

  // Memory for `behind` tokens behind the prompt; none for none.
  TailMap Tails(int64_t behind) const;
  // The same for their values apart, by layer.
  TailMap ValueTails(int64_t behind) const;
  // Bytes of tails, with values apart, that have been written once `behind` tokens are behind the
  // prompt.
  size_t WrittenTailBytes(int64_t behind) const;

 private:
  void FormGroups(const CodecContext& context);
  void Place();
  int32_t PagesOf(const std::vector<size_t>& begins, int32_t kv_layer) const;
  size_t JointTailBytes(const JointGroup& group, int64_t blocks) const;

  std::vector<kernels::ShadowKvPromptLayout> layouts_;  // by layer
  std::vector<JointGroup> groups_;
  std::vector<size_t> prompt_begins_;  // by layer, then the end
  std::vector<size_t> value_begins_;   // the same
  size_t page_bytes_ = 0;
  int32_t most_pages_ = 1;
};

}  // namespace baton::kv
