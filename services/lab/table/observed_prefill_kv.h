// A prompt that several encodings watch while it is computed.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"

#include "common/kv/codec/dense_step_kv.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/step_kv.h"

namespace baton::lab {

// One prefill step of one sequence into dense working pages: every encoding observes the queries it
// asks for, and in the step that completes the prompt every layer is encoded by all of them as soon
// as it was read. Everything is borrowed. Not thread-safe.
class ObservedPrefillKv : public kv::StepKv {
 public:
  ObservedPrefillKv(const kernels::OpTable& ops,
                    const kernels::ExecContext& exec,
                    const kv::WorkingKv& working,
                    std::span<kv::EncodedKv* const> encodings,
                    bool completes_prompt);

  absl::Status Write(const kv::KvRows& rows, const kv::KvEntries& entries) override {
    return dense_.Write(rows, entries);
  }
  absl::Status Attend(const kv::KvRows& rows, const kv::KvQueries& queries) override;
  absl::Status LayersWritten(int32_t /*layer_begin*/, int32_t /*layer_end*/) override {
    return absl::OkStatus();
  }
  absl::Status LayerAttended(int32_t kv_layer) override;

 private:
  const kv::WorkingKv& working_;
  kv::DenseStepKv dense_;
  const std::span<kv::EncodedKv* const> encodings_;
  const bool completes_prompt_;
};

}  // namespace baton::lab
