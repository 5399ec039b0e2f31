// Keys and values that lie in working pages, as rows.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/kv/codec/codec_context.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/step_kv.h"
#include "kernels/core/memory.h"
#include "kernels/kv_format/dense.h"

namespace baton::kv {

// Brings keys (after RoPE) and values of a prompt's tokens from its working pages to rows of
// activations, as a model hands them over. A page is a table of vectors of head_dim elements, from
// which the op `embed` takes rows. Executor thread.
class WorkingReader {
 public:
  // At most `most_tokens` are read at once. `context` is borrowed.
  WorkingReader(const CodecContext& context, int64_t most_tokens)
      : context_(context), most_tokens_(most_tokens) {}

  // Before a step that reads pages of this layout, which is the same each time: memory for it.
  absl::Status Prepare(const kernels::DensePageLayout& layout);
  // One row for each of the tokens [first, first + count) of a stored layer. The next call writes
  // over them.
  absl::StatusOr<KvEntries> Read(const WorkingKv& working,
                                 int32_t kv_layer,
                                 int64_t first,
                                 int64_t count) const;

 private:
  const CodecContext& context_;
  const int64_t most_tokens_;
  kernels::Memory vector_ids_;  // int32 [page_tokens][key, value][kv_heads]: places in a page
  kernels::Memory rows_;        // [most_tokens][key, value][kv_heads x head_dim]
};

}  // namespace baton::kv
