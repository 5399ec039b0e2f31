// Tokens of one sequence on their way to the client: text, stop strings, counts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/text/detokenizer.h"
#include "common/text/stop_matcher.h"
#include "common/text/tokenizer.h"
#include "proto/baton/inference/v1/inference.pb.h"
#include "proto/baton/worker/v1/sampling.pb.h"

namespace baton::router {

// How the output of a request is turned into text; the same for all its sequences.
struct OutputOptions {
  std::vector<std::string> stop;
  bool include_stop_str = false;
  bool skip_special_tokens = true;
  // Stop strings are not looked for in the text of the first min_tokens tokens.
  uint32_t min_tokens = 0;
};

// One of a request's n sequences. Not thread-safe.
class SequenceOutput {
 public:
  // `tokenizer` must outlive the object. `matcher` is a copy of the request's.
  SequenceOutput(const text::Tokenizer* tokenizer,
                 const OutputOptions& options,
                 text::StopMatcher matcher,
                 uint32_t index);

  // Takes the next tokens and returns what the client gets of them. Ends the sequence at a stop
  // string: tokens past the match are neither delivered nor counted. Tokens of an ended sequence
  // are dropped.
  inference::v1::Delta Push(const worker::v1::TokenDelta& tokens);

  // Ends the sequence as the worker says. Returns the text that was held back. Does nothing to an
  // ended sequence.
  inference::v1::Delta Finish(const worker::v1::SequenceFinished& finished);

  bool done() const { return done_; }
  // Ended by a stop string: the worker does not know and goes on.
  bool cut() const { return cut_; }
  // How it ended; meaningful when done().
  const inference::v1::Finished& finished() const { return finished_; }
  // Tokens that count: delivered ones and a stop token.
  uint32_t completion_tokens() const { return completion_tokens_; }
  // Tokens handed to the client.
  uint32_t delivered_tokens() const { return static_cast<uint32_t>(delivered_.size()); }
  // Their ids: what another worker needs to go on with the sequence.
  const std::vector<int32_t>& delivered() const { return delivered_; }

 private:
  void PushToken(const worker::v1::Token& token, inference::v1::Delta* delta);
  void EndAtStopString();

  text::IncrementalDetokenizer detokenizer_;
  text::StopMatcher matcher_;
  uint32_t min_tokens_;
  uint32_t index_;
  std::vector<int32_t> delivered_;
  uint32_t completion_tokens_ = 0;
  bool done_ = false;
  bool cut_ = false;
  inference::v1::Finished finished_;
};

}  // namespace baton::router
