#include "services/router/operations/collect_response.h"

#include <utility>

namespace baton::router {
namespace {

inference::v1::Choice* ChoiceAt(uint32_t index, inference::v1::GenerateResponse* response) {
  while (static_cast<uint32_t>(response->choices_size()) <= index) {
    const auto next = static_cast<uint32_t>(response->choices_size());
    response->add_choices()->set_index(next);
  }
  return response->mutable_choices(static_cast<int>(index));
}

}  // namespace

void CollectResponse(inference::v1::GenerateStreamResponse&& message,
                     inference::v1::GenerateResponse* response) {
  using Response = inference::v1::GenerateStreamResponse;
  switch (message.event_case()) {
    case Response::kStarted:
      *response->mutable_started() = std::move(*message.mutable_started());
      return;
    case Response::kDelta: {
      inference::v1::Choice* choice = ChoiceAt(message.delta().index(), response);
      choice->mutable_token_ids()->MergeFrom(message.delta().token_ids());
      choice->mutable_text()->append(message.delta().text());
      choice->mutable_logprobs()->MergeFrom(message.delta().logprobs());
      return;
    }
    case Response::kFinished:
      *ChoiceAt(message.finished().index(), response)->mutable_finished() =
          std::move(*message.mutable_finished());
      return;
    case Response::kUsage:
      *response->mutable_usage() = std::move(*message.mutable_usage());
      return;
    case Response::EVENT_NOT_SET:
      return;
  }
}

}  // namespace baton::router
