#include "services/router/session/sequence_output.h"

#include <string>
#include <utility>

#include "common/text/stop_matcher.h"
#include "common/text/tokenizer.h"

namespace baton::router {

SequenceOutput::SequenceOutput(const text::Tokenizer* tokenizer,
                               const OutputOptions& options,
                               text::StopMatcher matcher,
                               uint32_t index)
    : detokenizer_(tokenizer, options.skip_special_tokens),
      matcher_(std::move(matcher)),
      min_tokens_(options.min_tokens),
      index_(index) {}

void SequenceOutput::PushToken(const worker::v1::Token& token, inference::v1::Delta* delta) {
  delivered_.push_back(static_cast<int32_t>(token.id()));
  ++completion_tokens_;
  delta->add_token_ids(token.id());
  if (token.has_logprob()) {
    inference::v1::TokenLogprob* logprob = delta->add_logprobs();
    logprob->set_token_id(token.id());
    logprob->set_logprob(token.logprob());
    for (const worker::v1::TopLogprob& top : token.top_logprobs()) {
      inference::v1::TopLogprob* out = logprob->add_top();
      out->set_token_id(top.token_id());
      out->set_logprob(top.logprob());
    }
  }
  std::string text = detokenizer_.Push(static_cast<int32_t>(token.id()));
  if (completion_tokens_ <= min_tokens_) {
    delta->mutable_text()->append(text);
    return;
  }
  const text::StopMatcher::Output output = matcher_.Push(text);
  delta->mutable_text()->append(output.text);
  if (output.stopped) {
    EndAtStopString();
  }
}

void SequenceOutput::EndAtStopString() {
  done_ = true;
  cut_ = true;
  finished_.set_index(index_);
  finished_.set_reason(inference::v1::FINISH_REASON_STOP);
  finished_.set_stop(matcher_.matched());
}

inference::v1::Delta SequenceOutput::Push(const worker::v1::TokenDelta& tokens) {
  inference::v1::Delta delta;
  delta.set_index(index_);
  for (const worker::v1::Token& token : tokens.tokens()) {
    if (done_) {
      break;
    }
    PushToken(token, &delta);
  }
  return delta;
}

inference::v1::Delta SequenceOutput::Finish(const worker::v1::SequenceFinished& finished) {
  inference::v1::Delta delta;
  delta.set_index(index_);
  if (done_) {
    return delta;
  }
  const text::StopMatcher::Output output = matcher_.PushFlushed(detokenizer_.Flush());
  delta.mutable_text()->append(output.text);
  if (output.stopped) {
    EndAtStopString();
    cut_ = false;  // the worker has ended it too
    return delta;
  }
  delta.mutable_text()->append(matcher_.Finish());
  done_ = true;
  finished_.set_index(index_);
  const bool stopped = finished.reason() == worker::v1::FINISH_REASON_STOP;
  finished_.set_reason(stopped ? inference::v1::FINISH_REASON_STOP
                               : inference::v1::FINISH_REASON_LENGTH);
  if (finished.has_stop_token_id()) {
    ++completion_tokens_;
    finished_.set_stop_token_id(finished.stop_token_id());
  }
  return delta;
}

}  // namespace baton::router
