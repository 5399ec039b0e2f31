// A prompt that several encodings watch while it is computed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"

#include "common/kv/codec/dense_step_kv.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/hidden/hidden_state.h"
#include "common/kv/codec/step_kv.h"
#include "kernels/core/step_arrays.h"

namespace baton::lab {

// What watches a prompt.
struct PrefillObservers {
  struct Encoding {
    kv::EncodedKv* kv = nullptr;
    int32_t layers =
        0;  // stored layers that are encoded from the prompt's own pages, the first ones
  };
  std::vector<Encoding> encodings;
  std::vector<kv::HiddenState*> hidden;
};

// One prefill step of one sequence into dense working pages: every encoding observes the queries it
// asks for, every hidden state takes its rows, and in the step that completes the prompt every
// layer is encoded as soon as it was read. Everything is borrowed. Not thread-safe.
class ObservedPrefillKv : public kv::StepKv {
 public:
  ObservedPrefillKv(const kernels::OpTable& ops,
                    const kernels::ExecContext& exec,
                    const kv::WorkingKv& working,
                    const PrefillObservers& observers,
                    bool completes_prompt);

  absl::Status Prepare(std::span<const kv::KvRows> tiles, kernels::StepArrays& arrays) override {
    return dense_.Prepare(tiles, arrays);
  }
  absl::Status Write(const kv::KvRows& rows, const kv::KvEntries& entries) override {
    return dense_.Write(rows, entries);
  }
  absl::Status Attend(const kv::KvRows& rows, const kv::KvQueries& queries) override;
  absl::Status WriteHidden(const kv::KvRows& rows, const void* x, int64_t stride) override;
  absl::Status LayersWritten(int32_t /*layer_begin*/, int32_t /*layer_end*/) override {
    return absl::OkStatus();
  }
  absl::Status LayerAttended(int32_t kv_layer) override;

 private:
  const kv::WorkingKv& working_;
  kv::DenseStepKv dense_;
  const PrefillObservers& observers_;
  const bool completes_prompt_;
};

}  // namespace baton::lab
