// The router tells prefill workers of decode workers before it sends requests.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/integration/router/fake_cluster.h"
#include "tests/integration/router/router_fixture.h"

namespace baton::router {
namespace {

using testing::Contains;
using testing::Each;
using testing::IsSupersetOf;
using testing::Not;

class IntroduceTest : public RouterFixture {
 protected:
  static bool WaitForIntroductions(const FakeWorker& worker, size_t count) {
    return WaitUntil([&] { return worker.introduced().size() >= count; });
  }
};

TEST_F(IntroduceTest, EveryPrefillWorkerIsToldOfEveryDecodeWorker) {
  AddPrefill();
  AddPrefill();
  AddDecode();
  AddDecode(worker::v1::ROLE_BOTH);
  Start();
  for (const auto& prefill : prefills_) {
    ASSERT_TRUE(WaitUntil([&] {
      return testing::Matches(IsSupersetOf({decodes_[0]->address(), decodes_[1]->address()}))(
          prefill->introduced());
    }));
  }
}

TEST_F(IntroduceTest, ADecodeWorkerThatStartsAgainIsToldOfAgain) {
  AddPrefill();
  AddDecode();
  Start();
  ASSERT_TRUE(WaitForIntroductions(*prefills_[0], 1));
  const std::vector<std::string> before = prefills_[0]->introduced();
  decodes_[0]->Kill();
  decodes_[0]->Start(decodes_[0]->port());
  ASSERT_TRUE(WaitForIntroductions(*prefills_[0], before.size() + 1));
  EXPECT_THAT(prefills_[0]->introduced(), Each(decodes_[0]->address()));
}

TEST_F(IntroduceTest, APrefillWorkerThatStartsAgainIsToldOfThoseThereAre) {
  AddPrefill();
  AddDecode();
  Start();
  ASSERT_TRUE(WaitForIntroductions(*prefills_[0], 1));
  const std::vector<std::string> before = prefills_[0]->introduced();
  prefills_[0]->Kill();
  prefills_[0]->Start(prefills_[0]->port());
  EXPECT_TRUE(WaitForIntroductions(*prefills_[0], before.size() + 1));
}

TEST_F(IntroduceTest, AWorkerListedForAnotherRoleIsNotIntroduced) {
  AddPrefill();
  AddDecode();
  AddDecode(worker::v1::ROLE_PREFILL);
  Start();
  ASSERT_TRUE(WaitForIntroductions(*prefills_[0], 1));
  prefills_[0]->Kill();
  prefills_[0]->Start(prefills_[0]->port());
  ASSERT_TRUE(WaitForIntroductions(*prefills_[0], 2));
  EXPECT_THAT(prefills_[0]->introduced(), Not(Contains(decodes_[1]->address())));
}

}  // namespace
}  // namespace baton::router
