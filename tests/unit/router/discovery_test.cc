#include "services/router/workers/discovery.h"

#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::router {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(DiscoveryTest, AFixedListIsSortedWithoutDuplicates) {
  EXPECT_THAT(*ParseAddressList("b:2,a:1,b:2"), ElementsAre("a:1", "b:2"));
  EXPECT_THAT(*ParseAddressList(""), IsEmpty());
}

TEST(DiscoveryTest, NamesAnAddressThatIsWrong) {
  for (const char* list : {"host", "host:", ":1", "host:0", "host:65536", "host:x"}) {
    EXPECT_EQ(ParseAddressList(list).status().code(), absl::StatusCode::kInvalidArgument) << list;
  }
}

TEST(DiscoveryTest, AFixedListIsReportedAtOnce) {
  std::vector<std::string> reported;
  const auto discovery = StartDiscovery(
      "a:1,b:2", [&](const auto& addresses) { reported = addresses; }, absl::Seconds(1));
  ASSERT_TRUE(discovery.ok());
  EXPECT_THAT(reported, ElementsAre("a:1", "b:2"));
}

TEST(DiscoveryTest, ADnsNameIsResolvedToItsAddresses) {
  absl::Mutex mutex;
  std::vector<std::string> reported;
  const auto discovery = StartDiscovery(
      "dns:///localhost:1234",
      [&](const auto& addresses) {
        absl::MutexLock lock(&mutex);
        reported = addresses;
      },
      absl::Milliseconds(50));
  ASSERT_TRUE(discovery.ok());
  absl::MutexLock lock(&mutex);
  const auto done = [&] { return !reported.empty(); };
  ASSERT_TRUE(mutex.AwaitWithTimeout(absl::Condition(&done), absl::Seconds(30)));
  EXPECT_THAT(reported, ::testing::AnyOf(Contains("127.0.0.1:1234"), Contains("[::1]:1234")));
}

TEST(DiscoveryTest, ADnsNameNeedsAPort) {
  EXPECT_FALSE(StartDiscovery("dns:///localhost", [](const auto&) {}, absl::Seconds(1)).ok());
}

}  // namespace
}  // namespace baton::router
