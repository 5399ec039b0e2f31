// A KV format that is encoded after prefill, with the memory that a worker gives it.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"

#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/kv_policy.h"
#include "common/kv/codec/policy_params.h"

namespace baton::kv {

// Where a prompt of another worker lands: [layers][pages_per_layer] pages of page_bytes.
struct WindowShape {
  int32_t pages_per_layer = 0;
  int64_t page_bytes = 0;

  bool operator==(const WindowShape&) const = default;
};

// Memory of a format on this worker.
struct PoolBytes {
  int64_t total = 0;
  int64_t free = 0;
};

// Plans and hands out the memory of one format. `policy` is always one of this format. Engine
// thread, except the const members, which any thread may call.
class EncodedFormat {
 public:
  virtual ~EncodedFormat() = default;

  virtual KvFormatId id() const = 0;
  // Layout version of the bytes; both sides of a hand-off must agree.
  virtual uint16_t version() const = 0;

  // kInvalidArgument when the model's shape or the prompt can't have this policy, or when so many
  // sequences of the prompt can never fit (EXCEEDS_CAPACITY).
  virtual absl::Status Check(const KvResidentPolicy& policy,
                             int64_t prompt_tokens,
                             int64_t max_tokens,
                             int32_t sequences) const = 0;
  // True when a prompt so short is better kept in format `dense`, which is then what it gets.
  virtual bool PrefersDense(const KvResidentPolicy& policy, int64_t prompt_tokens) const = 0;
  // The last prompt tokens that run through all layers (W; swiftkv.md 1.3).
  virtual int32_t observation_window(const KvResidentPolicy& policy) const = 0;
  // What of the model's calibration shapes the bytes that are handed over, as a digest; both sides
  // must agree. 0: nothing.
  virtual uint64_t calibration_digest() const { return 0; }
  virtual WindowShape window(const KvResidentPolicy& policy, int64_t prompt_tokens) const = 0;
  // Memory for the prompt and max_tokens generated ones, or null when too little is free now.
  virtual std::unique_ptr<EncodedKv> Allocate(const KvResidentPolicy& policy,
                                              int64_t prompt_tokens,
                                              int64_t max_tokens) = 0;
  // Takes the memory to extend `sequence`, one of this format, to a prompt of `prompt_tokens`, more
  // than sequence.tokens(), and to generate max_tokens then. False, and nothing changed, when too
  // little is free now. May be called any number of times, each time once the tokens of the
  // extension before are taken in; see EncodedKv.
  virtual bool Extend(EncodedKv& sequence, int64_t prompt_tokens, int64_t max_tokens) = 0;
  virtual PoolBytes pool() const = 0;
  // On a device: memory of the host that a part of the sequences takes; nothing without one.
  virtual PoolBytes host_pool() const { return {}; }
};

}  // namespace baton::kv
