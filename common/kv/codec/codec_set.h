// The encoded KV formats that a worker serves.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"

#include "common/kv/codec/codec_context.h"
#include "common/kv/codec/encoded_format.h"
#include "common/kv/codec/hidden/hidden_pool.h"
#include "common/kv/codec/kv_calibration.h"
#include "common/kv/codec/kv_policy.h"

namespace baton::kv {

// Bytes of each format's pool; 0: the format is not served, and neither is one that has no layout
// for the model's head_dim.
struct CodecPools {
  int64_t fp8_bytes = 0;
  int64_t diffkv_bytes = 0;
  int64_t shadowkv_bytes = 0;
  // In the host's memory, for values of vplace=host; 0: not served, no value: in shadowkv_bytes.
  std::optional<int64_t> shadowkv_host_bytes = {};
  int64_t hidden_bytes = 0;  // hidden states in transfer; SwiftKV models only
};

// Owns formats and their pools. Find is const and thread-safe; formats: encoded_format.h.
class CodecSet {
 public:
  static absl::StatusOr<std::unique_ptr<CodecSet>> Create(CodecContext context,
                                                          const CodecPools& pools);

  // Null when the format is not served here, or is not an encoded one.
  EncodedFormat* Find(KvFormatId id) const;
  // Null when hidden states are not served here, or the model has no upper SwiftKV layers.
  HiddenPool* hidden() const { return hidden_.get(); }
  // Whether the model is a SwiftKV one.
  bool has_upper_layers() const { return context_.full_layers < context_.dimensions.layers; }
  const std::map<KvFormatId, std::unique_ptr<EncodedFormat>>& formats() const { return formats_; }
  // Of the model; null without one.
  const KvCalibration* calibration() const { return context_.calibration.get(); }

 private:
  explicit CodecSet(CodecContext context) : context_(std::move(context)) {}

  const CodecContext context_;
  std::map<KvFormatId, std::unique_ptr<EncodedFormat>> formats_;
  std::unique_ptr<HiddenPool> hidden_;
};

}  // namespace baton::kv
