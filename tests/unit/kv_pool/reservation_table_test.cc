#include "common/kv/pool/reservation_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

namespace baton::kv {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const absl::Time kStart = absl::FromUnixSeconds(1000);

void ExpectStale(const absl::Status& status) {
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("STALE_EPOCH"));
}

TEST(ReservationTableTest, EpochsAreRandomAndIdsUnique) {
  ReservationTable table(absl::Seconds(10));
  ReservationTable other(absl::Seconds(10));
  std::set<uint64_t> epochs;
  std::set<uint64_t> ids;
  for (int i = 0; i < 1000; ++i) {
    const ReservationKey key = table.Add(kStart);
    EXPECT_NE(key.epoch, 0u);
    epochs.insert(key.epoch);
    ids.insert(key.reservation_id);
    epochs.insert(other.Add(kStart).epoch);
  }
  EXPECT_EQ(epochs.size(), 2000u);
  EXPECT_EQ(ids.size(), 1000u);
}

TEST(ReservationTableTest, UnknownRemovedOrForeignKeysAreStale) {
  ReservationTable table(absl::Seconds(10));
  const ReservationKey key = table.Add(kStart);
  EXPECT_TRUE(table.Check(key, kStart).ok());
  ExpectStale(table.Check({.reservation_id = key.reservation_id, .epoch = key.epoch + 1}, kStart));
  ExpectStale(table.Check({.reservation_id = key.reservation_id + 1, .epoch = key.epoch}, kStart));
  table.Remove(key.reservation_id);
  table.Remove(key.reservation_id);
  ExpectStale(table.Renew(key, kStart));
  EXPECT_EQ(table.size(), 0);
}

TEST(ReservationTableTest, LeaseEndsUnlessRenewed) {
  ReservationTable table(absl::Seconds(10));
  const ReservationKey key = table.Add(kStart);
  const ReservationKey idle = table.Add(kStart + absl::Seconds(1));
  EXPECT_EQ(table.NextExpiry(), kStart + absl::Seconds(10));
  EXPECT_TRUE(table.Renew(key, kStart + absl::Seconds(9)).ok());
  EXPECT_EQ(table.NextExpiry(), kStart + absl::Seconds(11));
  EXPECT_THAT(table.Expired(kStart + absl::Seconds(10)), IsEmpty());
  EXPECT_THAT(table.Expired(kStart + absl::Seconds(11)), ElementsAre(idle.reservation_id));
  ExpectStale(table.Renew(idle, kStart + absl::Seconds(11)));
  EXPECT_TRUE(table.Check(key, kStart + absl::Seconds(18)).ok());
}

TEST(ReservationTableTest, NoReservationNeverExpires) {
  EXPECT_EQ(ReservationTable(absl::Seconds(1)).NextExpiry(), absl::InfiniteFuture());
}

TEST(ReservationTableTest, OlderAttemptsAreRefused) {
  ReservationTable table(absl::Seconds(10));
  const ReservationKey key = table.Add(kStart);
  EXPECT_TRUE(table.BeginAttempt(key, 2, kStart).ok());
  EXPECT_TRUE(table.BeginAttempt(key, 2, kStart).ok());
  EXPECT_EQ(table.BeginAttempt(key, 1, kStart).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(table.BeginAttempt(key, 3, kStart).ok());
  EXPECT_EQ(table.CheckAttempt(key, 2, kStart).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(table.CheckAttempt(key, 4, kStart).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(table.CheckAttempt(key, 3, kStart).ok());
}

TEST(ReservationTableTest, AnAttemptIsASignOfLife) {
  ReservationTable table(absl::Seconds(10));
  const ReservationKey key = table.Add(kStart);
  EXPECT_TRUE(table.BeginAttempt(key, 1, kStart + absl::Seconds(9)).ok());
  EXPECT_TRUE(table.Check(key, kStart + absl::Seconds(18)).ok());
  ExpectStale(table.BeginAttempt(key, 1, kStart + absl::Seconds(19)));
}

}  // namespace
}  // namespace baton::kv
