// Workers whose KV pools differ in size.
#include <thread>

#include "absl/time/time.h"
#include "gtest/gtest.h"

#include "common/rpc/status_details.h"
#include "services/router/router_options.h"
#include "services/router/workers/worker.h"
#include "tests/integration/router/fake_cluster.h"
#include "tests/integration/router/router_fixture.h"

namespace baton::router {
namespace {

class PoolSizesTest : public RouterFixture {
 protected:
  // A pair and a small decode worker, after the router has learnt that the large one has died.
  // Returns that one's port.
  int StartAndLoseTheLargeDecode(absl::Duration endpoint_wait) {
    AddPrefill();
    FakeWorker& large = AddDecode();
    AddDecode().set_pool_tokens(100);
    RouterOptions options;
    options.endpoint_wait = endpoint_wait;
    Start(options);
    EXPECT_TRUE(WaitUntil([&] { return ReadyDecodes() == 2; }));
    const int port = large.port();
    large.Kill();
    EXPECT_TRUE(WaitUntil([&] { return ReadyDecodes() == 1; }));
    return port;
  }
  // Workers that the router takes for ready.
  int ReadyDecodes() const {
    int ready = 0;
    for (const auto& worker : router_->core().workers->List(WorkerKind::kDecode)) {
      ready += worker->decode_load().ready ? 1 : 0;
    }
    return ready;
  }
  bool Queued(int64_t requests) const {
    return router_->core().admission->queued().requests == requests;
  }
};

TEST_F(PoolSizesTest, ARequestThatNobodyReadyCanHoldDelaysNobodyAndEndsAfterTheWait) {
  StartAndLoseTheLargeDecode(absl::Seconds(2));
  StreamOutcome waiting;
  std::thread client([&] { waiting = Stream(Request(200)); });
  EXPECT_TRUE(WaitUntil([&] { return Queued(1); }));
  for (int i = 0; i < 3; ++i) {
    const StreamOutcome small = Stream(Request(4));
    EXPECT_TRUE(small.status.ok()) << small.status;
    EXPECT_TRUE(Queued(1)) << "the large one was to be still there";
  }
  client.join();
  EXPECT_EQ(waiting.status.code(), absl::StatusCode::kUnavailable) << waiting.status;
  EXPECT_EQ(rpc::ReasonOf(waiting.status), rpc::reason::kNoEndpoints);
  EXPECT_TRUE(ready());
}

TEST_F(PoolSizesTest, ARequestThatWaitsForItsLargeWorkerIsServedWhenThatIsBack) {
  const int port = StartAndLoseTheLargeDecode(absl::Seconds(30));
  StreamOutcome waiting;
  std::thread client([&] { waiting = Stream(Request(200)); });
  EXPECT_TRUE(WaitUntil([&] { return Queued(1); }));
  EXPECT_TRUE(Stream(Request(4)).status.ok());
  decodes_.front()->Start(port);
  client.join();
  EXPECT_TRUE(waiting.status.ok()) << waiting.status;
}

TEST_F(PoolSizesTest, APrefillWorkerThatIsTooSmallForThePromptIsNotAsked) {
  FakeWorker& small = AddPrefill();
  FakeWorker& large = AddPrefill();
  AddDecode();
  small.set_pool_tokens(1);  // of a prompt of two tokens
  large.set_free_slots(1);
  Start();
  for (int i = 1; i <= 4; ++i) {
    const StreamOutcome outcome = Stream(Request(2));
    ASSERT_TRUE(outcome.status.ok()) << outcome.status;
    EXPECT_EQ(large.calls(), i);
  }
  EXPECT_EQ(small.calls(), 0);
}

TEST_F(PoolSizesTest, AFormatWithMemoryOfItsOwnIsNotHeldAgainstTheDensePool) {
  AddPrefill();
  AddDecode().set_pool_tokens(20);
  Start();
  inference::v1::GenerateRequest request = Request(30);
  const StreamOutcome dense = Stream(request);
  EXPECT_EQ(dense.status.code(), absl::StatusCode::kInvalidArgument) << dense.status;
  EXPECT_EQ(rpc::ReasonOf(dense.status), rpc::reason::kExceedsCapacity);
  request.set_kv_policy("diffkv");
  const StreamOutcome compressed = Stream(request);
  EXPECT_TRUE(compressed.status.ok()) << compressed.status;
  EXPECT_EQ(compressed.token_ids.size(), 30u);
}

}  // namespace
}  // namespace baton::router
