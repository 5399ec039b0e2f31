#include "common/kv/codec/host_codec.h"

#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/step_kv.h"
#include "kernels/core/step_arrays.h"

namespace baton::kv {
namespace {

class HostRows final : public DecodeRows {
 public:
  HostRows(HostCodec& codec, std::span<const DecodeRow> rows) : codec_(codec), rows_(rows) {}

  absl::Status Append(const KvEntries& entries) override { return codec_.Append(rows_, entries); }
  absl::Status Attend(const KvQueries& queries) override { return codec_.Attend(rows_, queries); }

 private:
  HostCodec& codec_;
  const std::span<const DecodeRow> rows_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DecodeRows>> HostCodec::Prepare(std::span<const DecodeRow> rows,
                                                               kernels::StepArrays& /*arrays*/) {
  return std::make_unique<HostRows>(*this, rows);
}

}  // namespace baton::kv
