// Everything that is known of one request after it ended.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "proto/baton/inference/v1/inference.pb.h"

namespace baton::loadtest {

// What was done to a request on purpose.
enum class Fault {
  kNone,
  kCancel,      // cancelled by the load test at a random moment
  kSlowReader,  // read with a pause before every message
};

// A message of the stream that carried tokens.
struct TokenMessage {
  uint32_t after_us = 0;  // since the request was sent
  uint32_t tokens = 0;
};

// Times count from the start of the run.
struct RequestRecord {
  int64_t index = 0;            // in the order of sending
  std::string request_id = {};  // as the server's log has it
  std::string conversation = {};
  int32_t turn = 0;  // from 0

  // When the arrival process wanted it; in a closed loop, when the slot became free.
  absl::Duration scheduled = {};
  // When nothing but the load test itself could hold it back any more: the later of `scheduled` and
  // the moment when a slot of the concurrency limit became free.
  absl::Duration allowed = {};
  absl::Duration sent = {};
  absl::Duration end = {};  // of the stream
  std::vector<TokenMessage> messages = {};
  // When the message came that ends the answer, in microseconds since the request was sent.
  std::optional<uint32_t> finished_us = std::nullopt;

  // kOk only for a stream that delivered its accounting; kDataLoss when it ended well without.
  absl::StatusCode code = absl::StatusCode::kUnknown;
  std::string reason = {};  // ErrorInfo.reason
  std::string error = {};
  inference::v1::FinishReason finish = inference::v1::FINISH_REASON_UNSPECIFIED;
  inference::v1::Usage usage = {};
  std::string kv_policy = {};  // in use; until the server said so, as asked

  uint32_t max_tokens = 0;
  bool ignore_eos = false;
  absl::Duration deadline = absl::InfiniteDuration();  // after `sent`
  Fault fault = Fault::kNone;
  bool abandoned = false;  // cancelled because the run was over
  std::optional<bool> correct = std::nullopt;

  bool ok() const { return code == absl::StatusCode::kOk; }
};

}  // namespace baton::loadtest
