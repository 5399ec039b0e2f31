// Which prefill and which decode worker serve the next request: a pure function of their loads.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace baton::scheduling {

// Where a worker stands; empty: not told.
struct Place {
  std::string host = {};
  std::string rack = {};
};

// A prefill worker as the router knows it: its last report, corrected by what this router has sent
// since.
struct PrefillLoad {
  uint64_t worker = 0;         // the caller's id
  bool ready = false;          // connected, reports fresh, not draining
  int64_t free_slots = 0;      // requests that it starts at once, by its report
  int64_t waiting_tokens = 0;  // queued prompt tokens, by its report
  // Sent by this router and not in the report yet.
  int64_t unreported_requests = 0;
  int64_t unreported_tokens = 0;
  // Prompt tokens that its pool ever holds, ready or not; 0: not known.
  int64_t pool_tokens = 0;
  Place place = {};
};

// A decode worker, likewise.
struct DecodeLoad {
  uint64_t worker = 0;
  bool ready = false;
  bool can_prefill = false;  // role both
  // Tokens (prompt + n x max_tokens) that its pool ever holds; 0: not known.
  int64_t pool_tokens = 0;
  int64_t pages_total = 0;
  int64_t pages_free = 0;
  int64_t running_sequences = 0;
  int64_t reservations = 0;
  int64_t unreported_requests = 0;
  int64_t unreported_tokens = 0;
  // It has refused a request and not reported since, or has as many on their way as it may.
  bool full = false;
  Place place = {};
};

// What the request needs.
struct PairNeeds {
  int64_t prompt_tokens = 0;
  // Prompt and every token that may follow: prompt + n x max_tokens.
  int64_t total_tokens = 0;
  // Decode keeps the KV in its dense pages, whose size pool_tokens is. False: it may keep it in
  // another format's memory, of whose size only the worker knows.
  bool dense = true;
  // The decode worker that may have kept KV for the request: chosen if it has room.
  std::optional<uint64_t> prefer_decode = {};
  // The prefill worker that retains the request's KV. It is chosen while it is ready, also without
  // a free slot: it has nothing to compute.
  std::optional<uint64_t> prefer_prefill = {};
  // A prefill worker that has just failed this request: chosen only when there is no other.
  std::optional<uint64_t> avoid_prefill = {};
  std::optional<uint64_t> avoid_decode = {};
};

// The choice. No prefill: the decode worker prefills by itself (role both).
struct WorkerPair {
  std::optional<uint64_t> prefill;
  uint64_t decode = 0;
};

// The preferred prefill worker, else the least-loaded one with a free slot: fewest tokens ahead of
// the request, then fewest unreported requests, then the first of the list. A worker whose pool is
// too small for the prompt is left out while the list has a larger one, ready or not; where it has
// none, whoever is chosen tells the client so.
std::optional<uint64_t> ChoosePrefill(std::span<const PrefillLoad> prefills,
                                      const PairNeeds& needs);

// How much fuller, as a share of its pool, a decode worker on the prefill worker's host or in its
// rack may be and still be taken before a farther one: KV that stays on a host costs no network,
// but a full pool makes requests wait. Chosen, not measured.
inline constexpr double kSameHostBonus = 0.2;
inline constexpr double kSameRackBonus = 0.1;

// The preferred decode worker, else the one with the largest share of its pool left after taking
// the request, among those that have room for it; then fewest running sequences, then the first of
// the list. Workers near `prefill` have their bonus; nullptr: nobody is near. Pools that are too
// small are left out as for prefill; of KV that need not be in the pool, while a ready worker has a
// larger one.
std::optional<uint64_t> ChooseDecode(std::span<const DecodeLoad> decodes,
                                     const PairNeeds& needs,
                                     bool must_prefill,
                                     const Place* prefill = nullptr);

// The pair that serves the request now, or nullopt: it waits until loads change. Among prefill
// workers that are equally good the one with the best decode worker near it is taken. A decode
// worker of role both prefills only when no prefill worker is ready at all.
std::optional<WorkerPair> ChoosePair(std::span<const PrefillLoad> prefills,
                                     std::span<const DecodeLoad> decodes,
                                     const PairNeeds& needs);

// Whether a ready prefill worker could compute the prompt once it has a free slot.
bool CanPrefill(std::span<const PrefillLoad> prefills, const PairNeeds& needs);

// Whether the request, or any if none is told, could be served once there is room: by a ready
// decode worker whose pool is large enough, and a ready prefill worker as for CanPrefill, or where
// none is ready at all a decode worker of role both.
bool CanServe(std::span<const PrefillLoad> prefills,
              std::span<const DecodeLoad> decodes,
              const PairNeeds& needs = {});

}  // namespace baton::scheduling
