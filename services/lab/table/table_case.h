// One evaluation case under several KV policies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "common/eval/eval_case.h"
#include "common/eval/result_row.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/kv_policy.h"
#include "common/text/tokenizer.h"
#include "services/lab/baselines/baseline.h"
#include "services/lab/table/hidden_prompt.h"
#include "services/lab/table/table_formats.h"
#include "services/lab/table/table_model.h"
#include "services/lab/table/working_pages.h"

namespace baton::lab {

// Prepare, Prefill, then Answer for each policy, in any order. Arguments are borrowed. Not
// thread-safe.
class TableCase {
 public:
  TableCase(const eval::EvalCase& eval_case,
            const text::Tokenizer& tokenizer,
            std::vector<int32_t> prompt,
            TableModel& model);

  // Makes what each policy keeps the prompt in. Policies are formats or baselines.
  absl::Status Prepare(const std::vector<kv::KvPolicy>& policies, TableFormats& formats);

  // Computes the prompt once, encoded under every policy.
  absl::Status Prefill();

  // Decodes under policy `index` of Prepare, whose encoding is used up by it. The row lacks the
  // policy's name.
  absl::StatusOr<eval::ResultRow> Answer(size_t index);

 private:
  // The prompt under one policy.
  struct Encoding {
    std::unique_ptr<kv::EncodedKv> kv;  // null: dense pages
    HiddenPrompt* hidden = nullptr;     // null: prefill's own pages
    int64_t hidden_bytes = 0;           // sent instead of the upper layers
    int64_t wire_bytes = 0;             // 0: nothing ever sends it
    bool baseline = false;
  };

  absl::StatusOr<Encoding> PrepareFormat(const kv::KvFormatPolicy& policy, TableFormats& formats);
  absl::StatusOr<HiddenPrompt*> HiddenPromptOf(const kv::KvFormatPolicy& policy,
                                               TableFormats& formats);
  WorkingPages NewPages() const;
  WorkingPages& pages(const Encoding& encoding);
  // Layers that leave prefill as KV.
  int32_t sent_layers(const Encoding& encoding) const;
  int64_t WireBytes(const Encoding& encoding) const;
  std::vector<std::vector<int32_t>> TierTokens(const kv::EncodedKv* encoded) const;
  // Makes and encodes the upper layers of policies with hidden states.
  absl::Status ExpandHidden();

  const eval::EvalCase& eval_case_;
  const text::Tokenizer& tokenizer_;
  const std::vector<int32_t> prompt_;
  TableModel& model_;
  const BaselineSetup setup_;
  WorkingPages pages_;
  std::map<kv::HiddenWire, std::unique_ptr<HiddenPrompt>> hidden_prompts_;
  std::vector<Encoding> encodings_;
  int32_t first_token_ = 0;
  absl::Duration prefill_time_;
};

}  // namespace baton::lab
