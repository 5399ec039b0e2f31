#include "services/client/generation.h"

#include <utility>

#include "absl/time/clock.h"

#include "services/client/error_text.h"

namespace baton::client {
namespace {

// An index above this is not an answer to anything that was asked.
constexpr uint32_t kMaxSequences = 1024;

Generation::Sequence* SequenceAt(uint32_t index, Generation* generation) {
  if (index >= kMaxSequences) {
    return nullptr;
  }
  if (index >= generation->sequences.size()) {
    generation->sequences.resize(index + 1);
  }
  return &generation->sequences[index];
}

void TakeMessage(inference::v1::GenerateStreamResponse&& message,
                 const OnText& on_text,
                 Generation* generation) {
  if (message.has_started()) {
    generation->started = std::move(*message.mutable_started());
  } else if (message.has_delta()) {
    Generation::Sequence* sequence = SequenceAt(message.delta().index(), generation);
    if (sequence == nullptr) {
      return;
    }
    sequence->text += message.delta().text();
    sequence->token_ids.insert(sequence->token_ids.end(),
                               message.delta().token_ids().begin(),
                               message.delta().token_ids().end());
    if (on_text) {
      on_text(message.delta().index(), message.delta().text());
    }
  } else if (message.has_finished()) {
    if (Generation::Sequence* sequence = SequenceAt(message.finished().index(), generation)) {
      sequence->finished = std::move(*message.mutable_finished());
    }
  } else if (message.has_usage()) {
    generation->usage = std::move(*message.mutable_usage());
  }
}

}  // namespace

absl::StatusOr<Generation> Generate(Connection& connection,
                                    const inference::v1::GenerateRequest& request,
                                    const OnText& on_text) {
  const absl::Time start = absl::Now();
  grpc::ClientContext context;
  connection.Prepare(&context);
  const auto reader = connection.stub().GenerateStream(&context, request);
  Generation generation;
  inference::v1::GenerateStreamResponse message;
  bool first = true;
  bool complete = false;
  while (reader->Read(&message)) {
    if (first && (message.has_delta() || message.has_finished())) {
      first = false;
      generation.time_to_first_token = absl::Now() - start;
    }
    complete = complete || message.has_usage();
    TakeMessage(std::move(message), on_text, &generation);
  }
  const grpc::Status status = reader->Finish();
  if (!status.ok()) {
    return ReadableStatus(status);
  }
  if (!complete) {
    return absl::DataLossError("DATA_LOSS: the stream ended without its accounting");
  }
  generation.total_time = absl::Now() - start;
  return generation;
}

}  // namespace baton::client
