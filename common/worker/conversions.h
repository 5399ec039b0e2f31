// Between the messages of baton.worker.v1 and what the engine speaks.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "google/protobuf/duration.pb.h"

#include "common/engine/request.h"
#include "common/engine/sampling_params.h"
#include "proto/baton/kv/v1/manifest.pb.h"
#include "proto/baton/worker/v1/decode.pb.h"
#include "proto/baton/worker/v1/sampling.pb.h"

namespace baton::worker {

// Fields that don't fit the engine's types are kInvalidArgument naming "sampling.<field>"; what the
// values mean is for the engine to check.
absl::StatusOr<engine::SamplingParams> SamplingFromProto(const v1::SamplingParams& proto);

// The prompt as it travels: little-endian int32. kInvalidArgument (field prompt_token_ids) when
// empty or cut inside a token.
absl::StatusOr<std::vector<int32_t>> PromptFromBytes(const std::string& bytes);
// What a continued request's client has, one entry per sequence. kInvalidArgument (field delivered)
// when an entry is cut inside a token.
absl::StatusOr<std::vector<std::vector<int32_t>>> DeliveredFromProto(
    const v1::DecodeRequest& request);
std::string PromptToBytes(std::span<const int32_t> prompt);

// `with_logprobs`: the request asked for them.
v1::TokenDelta ToProto(int32_t sequence_index,
                       std::span<const engine::TokenOutput> tokens,
                       bool with_logprobs);
v1::SequenceFinished ToProto(int32_t sequence_index, const engine::SequenceFinish& finish);
google::protobuf::Duration ToProto(absl::Duration duration);

}  // namespace baton::worker
