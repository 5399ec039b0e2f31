// What a Prefill.Prefill call ships with.
#pragma once

#include "common/base/live_counter.h"
#include "common/handoff/retain/retention.h"
#include "common/handoff/send/sender.h"
#include "services/prefill/peers/channel_cache.h"

namespace baton::prefill::operations {

// All borrowed and thread-safe.
struct Shipping {
  handoff::Sender& sender;
  handoff::Retention& retention;
  ChannelCache& channels;
  LiveCounter& streams;  // to decode workers
};

}  // namespace baton::prefill::operations
