#include "common/worker/conversions.h"

#include <bit>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "common/engine/request.h"
#include "common/engine/sampling_params.h"
#include "common/rpc/status_details.h"

namespace baton::worker {
namespace {

static_assert(std::endian::native == std::endian::little, "tokens travel as they lie in memory");

constexpr uint32_t kMaxInt = std::numeric_limits<int32_t>::max();

absl::StatusOr<int32_t> Int32(const char* field, uint32_t value) {
  if (value > kMaxInt) {
    return rpc::InvalidField(absl::StrCat("sampling.", field),
                             absl::StrCat("is ", value, "; the limit is ", kMaxInt));
  }
  return static_cast<int32_t>(value);
}

absl::Status FillCounts(const v1::SamplingParams& proto, engine::SamplingParams& params) {
  BATON_ASSIGN_OR_RETURN(params.top_k, Int32("top_k", proto.top_k()));
  BATON_ASSIGN_OR_RETURN(params.n, Int32("n", proto.n()));
  BATON_ASSIGN_OR_RETURN(params.max_tokens, Int32("max_tokens", proto.max_tokens()));
  BATON_ASSIGN_OR_RETURN(params.min_tokens, Int32("min_tokens", proto.min_tokens()));
  if (proto.has_logprobs()) {
    BATON_ASSIGN_OR_RETURN(params.logprobs, Int32("logprobs", proto.logprobs()));
  }
  return absl::OkStatus();
}

// `bytes` is whole tokens.
std::vector<int32_t> TokensFromBytes(const std::string& bytes) {
  std::vector<int32_t> tokens(bytes.size() / sizeof(int32_t));
  bytes.copy(reinterpret_cast<char*>(tokens.data()), bytes.size());
  return tokens;
}

}  // namespace

absl::StatusOr<engine::SamplingParams> SamplingFromProto(const v1::SamplingParams& proto) {
  engine::SamplingParams params;
  params.temperature = proto.temperature();
  params.top_p = proto.top_p();
  params.min_p = proto.min_p();
  params.presence_penalty = proto.presence_penalty();
  params.frequency_penalty = proto.frequency_penalty();
  params.repetition_penalty = proto.repetition_penalty();
  params.seed = proto.seed();
  BATON_RETURN_IF_ERROR(FillCounts(proto, params));
  for (const auto& [token, bias] : proto.logit_bias()) {
    BATON_ASSIGN_OR_RETURN(const int32_t id, Int32("logit_bias", token));
    params.logit_bias.emplace_back(id, bias);
  }
  for (const uint32_t token : proto.stop_token_ids()) {
    BATON_ASSIGN_OR_RETURN(const int32_t id, Int32("stop_token_ids", token));
    params.stop_token_ids.push_back(id);
  }
  return params;
}

absl::StatusOr<std::vector<int32_t>> PromptFromBytes(const std::string& bytes) {
  if (bytes.empty() || bytes.size() % sizeof(int32_t) != 0) {
    return rpc::InvalidField(
        "prompt_token_ids",
        absl::StrCat("has ", bytes.size(), " bytes; it must be whole 4-byte tokens, at least one"));
  }
  return TokensFromBytes(bytes);
}

absl::StatusOr<std::vector<std::vector<int32_t>>> DeliveredFromProto(
    const v1::DecodeRequest& request) {
  std::vector<std::vector<int32_t>> delivered;
  for (const v1::DeliveredTokens& tokens : request.delivered()) {
    if (tokens.token_ids().size() % sizeof(int32_t) != 0) {
      return rpc::InvalidField(
          "delivered",
          absl::StrCat(
              "has ", tokens.token_ids().size(), " bytes; it must be whole 4-byte tokens"));
    }
    delivered.push_back(TokensFromBytes(tokens.token_ids()));
  }
  return delivered;
}

std::string PromptToBytes(std::span<const int32_t> prompt) {
  return std::string(reinterpret_cast<const char*>(prompt.data()), prompt.size_bytes());
}

v1::TokenDelta ToProto(int32_t sequence_index,
                       std::span<const engine::TokenOutput> tokens,
                       bool with_logprobs) {
  v1::TokenDelta delta;
  delta.set_index(static_cast<uint32_t>(sequence_index));
  delta.mutable_tokens()->Reserve(static_cast<int>(tokens.size()));
  for (const engine::TokenOutput& output : tokens) {
    v1::Token* token = delta.add_tokens();
    token->set_id(static_cast<uint32_t>(output.token_id));
    if (!with_logprobs) {
      continue;
    }
    token->set_logprob(output.logprob);
    for (const auto& [id, logprob] : output.top_logprobs) {
      v1::TopLogprob* top = token->add_top_logprobs();
      top->set_token_id(static_cast<uint32_t>(id));
      top->set_logprob(logprob);
    }
  }
  return delta;
}

v1::SequenceFinished ToProto(int32_t sequence_index, const engine::SequenceFinish& finish) {
  v1::SequenceFinished proto;
  proto.set_index(static_cast<uint32_t>(sequence_index));
  proto.set_reason(finish.reason == engine::FinishReason::kStop ? v1::FINISH_REASON_STOP
                                                                : v1::FINISH_REASON_LENGTH);
  if (finish.stop_token_id.has_value()) {
    proto.set_stop_token_id(static_cast<uint32_t>(*finish.stop_token_id));
  }
  return proto;
}

google::protobuf::Duration ToProto(absl::Duration duration) {
  google::protobuf::Duration proto;
  const int64_t nanos = absl::ToInt64Nanoseconds(duration);
  proto.set_seconds(nanos / 1'000'000'000);
  proto.set_nanos(static_cast<int32_t>(nanos % 1'000'000'000));
  return proto;
}

}  // namespace baton::worker
