#include "common/engine/admission_gate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton::engine {
namespace {

TEST(AdmissionGateTest, BoundsRequestsAndTokens) {
  AdmissionGate gate({.max_waiting_requests = 2, .max_waiting_tokens = 100});
  EXPECT_TRUE(gate.EnterQueue("a", 60).ok());
  EXPECT_EQ(gate.EnterQueue("b", 41).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(gate.EnterQueue("b", 40).ok());
  EXPECT_EQ(gate.EnterQueue("c", 0).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(gate.waiting().requests, 2);
  EXPECT_EQ(gate.waiting().tokens, 100);
  gate.LeaveQueue(60);
  EXPECT_TRUE(gate.EnterQueue("c", 60).ok());
}

TEST(AdmissionGateTest, LiveIdsAreUniqueAndReusableAfterTheEnd) {
  AdmissionGate gate({.max_waiting_requests = 9, .max_waiting_tokens = 100});
  const auto first = gate.Enter("a");
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(gate.Enter("a").status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(gate.EnterQueue("a", 1).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(gate.waiting().requests, 0);
  gate.Leave("a");
  const auto second = gate.Enter("a");
  ASSERT_TRUE(second.ok());
  EXPECT_NE(*first, *second);
}

TEST(AdmissionGateTest, OneCancelPerLiveRequest) {
  AdmissionGate gate({.max_waiting_requests = 9, .max_waiting_tokens = 100});
  EXPECT_FALSE(gate.MarkCancelled("a", absl::CancelledError("x")).has_value());
  const auto serial = gate.Enter("a");
  EXPECT_FALSE(gate.CancelReason("a").has_value());
  EXPECT_EQ(gate.MarkCancelled("a", absl::AbortedError("x")), *serial);
  EXPECT_FALSE(gate.MarkCancelled("a", absl::CancelledError("y")).has_value());
  EXPECT_EQ(gate.CancelReason("a")->code(), absl::StatusCode::kAborted);
}

TEST(AdmissionGateTest, DrainingRefusesNewRequests) {
  AdmissionGate gate({.max_waiting_requests = 9, .max_waiting_tokens = 100});
  gate.Drain();
  EXPECT_TRUE(gate.draining());
  EXPECT_EQ(gate.Enter("a").status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(gate.EnterQueue("a", 1).status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace baton::engine
