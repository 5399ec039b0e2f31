// A prompt's token ids, however it was written.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "proto/baton/inference/v1/inference.pb.h"
#include "services/router/model/served_model.h"

namespace baton::router {

// A rendered chat and its token ids.
struct EncodedChat {
  std::string rendered;
  std::vector<int32_t> token_ids;
};

// Renders `chat` with the model's template and encodes it; special tokens are the template's.
// kInvalidArgument names the field; kFailedPrecondition: the model has no chat template.
absl::StatusOr<EncodedChat> EncodeChatPrompt(const ServedModel& model,
                                             const inference::v1::Chat& chat,
                                             absl::Time now);

// Token ids of `text`, with the special tokens of the tokenizer's post-processor if asked for.
// kInvalidArgument names the field `text`.
absl::StatusOr<std::vector<int32_t>> EncodeTextPrompt(const ServedModel& model,
                                                      const std::string& text,
                                                      bool add_special_tokens);

// Token ids of a checked request's prompt. Time is that of the tokenizer: not for a gRPC reaction.
absl::StatusOr<std::vector<int32_t>> EncodePrompt(const ServedModel& model,
                                                  const inference::v1::GenerateRequest& request,
                                                  absl::Time now);

}  // namespace baton::router
