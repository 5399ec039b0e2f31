// KV that outlives its request: what conversations have so far.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"

#include "common/engine/kv_choice.h"
#include "common/engine/sequence.h"

namespace baton::engine {

// The KV of `token_ids`, all of it and nothing else; nothing is promised for more tokens.
struct KeptKv {
  std::string session_id;
  KvChoice kv;
  std::vector<int32_t> token_ids;
  Sequence sequence;
  int64_t pages_held = 0;  // dense
  absl::Time kept_since;

  // Whether a prompt goes on from here: it begins with exactly these tokens and has more.
  bool IsPrefixOf(const std::vector<int32_t>& prompt) const;
  // Bytes in the pool of an encoded format; 0: dense.
  int64_t EncodedBytes() const;
};

// By session id, in the order in which they were kept. What it gives away still owns memory that
// the caller has to return. Engine thread only.
class KeptKvStore {
 public:
  // Takes KV in; what its session had before comes out.
  std::optional<KeptKv> Put(KeptKv kept);
  // Takes the session's KV out.
  std::optional<KeptKv> Take(std::string_view session_id);
  // Takes out what has been there longest.
  std::optional<KeptKv> TakeOldest();
  // When what has been there longest came; InfiniteFuture if there is nothing.
  absl::Time oldest() const;

  size_t size() const { return order_.size(); }
  int64_t pages_held() const { return pages_held_; }
  int64_t encoded_bytes() const { return encoded_bytes_; }

 private:
  using Order = std::list<KeptKv>;
  KeptKv Remove(Order::iterator place);

  Order order_;  // oldest first
  absl::flat_hash_map<std::string, Order::iterator> by_session_;
  int64_t pages_held_ = 0;
  int64_t encoded_bytes_ = 0;
};

}  // namespace baton::engine
