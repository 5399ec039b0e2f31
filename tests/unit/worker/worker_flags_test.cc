// Flags that don't fit each other are refused before anything is loaded.
#include "common/worker/worker_flags.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/engine/engine.h"

ABSL_DECLARE_FLAG(std::string, device);
ABSL_DECLARE_FLAG(std::string, model);
ABSL_DECLARE_FLAG(std::string, simulate);
ABSL_DECLARE_FLAG(int64_t, staging_mib);
ABSL_DECLARE_FLAG(int64_t, kv_segment_kib);
ABSL_DECLARE_FLAG(std::string, transports);

namespace baton::worker {
namespace {

using ::testing::HasSubstr;

class WorkerFlagsTest : public testing::Test {
 protected:
  WorkerFlagsTest() { absl::SetFlag(&FLAGS_model, "somewhere"); }
  const absl::FlagSaver saver_;
};

TEST_F(WorkerFlagsTest, SimulateSetsTheSpeed) {
  EXPECT_FALSE(WorkerOptionsFromFlags(engine::Role::kBoth, "1")->simulation.has_value());
  absl::SetFlag(&FLAGS_simulate, "decode_ms=3");
  const auto options = WorkerOptionsFromFlags(engine::Role::kBoth, "1");
  ASSERT_TRUE(options.ok()) << options.status();
  ASSERT_TRUE(options->simulation.has_value());
  EXPECT_EQ(options->simulation->decode_step, absl::Milliseconds(3));
}

TEST_F(WorkerFlagsTest, SimulateWithABadSpeedOrOnAGpuIsRefused) {
  const auto message = [] {
    return std::string(WorkerOptionsFromFlags(engine::Role::kBoth, "1").status().message());
  };
  absl::SetFlag(&FLAGS_simulate, "decode_ms=fast");
  EXPECT_THAT(message(), HasSubstr("flag --simulate: simulation: decode_ms is 'fast'"));
  absl::SetFlag(&FLAGS_simulate, "default");
  absl::SetFlag(&FLAGS_device, "cuda");
  EXPECT_THAT(message(), HasSubstr("flag --simulate needs --device=cpu"));
}

TEST_F(WorkerFlagsTest, StagingIsToldInMiB) {
  EXPECT_EQ(WorkerOptionsFromFlags(engine::Role::kPrefill, "1")->engine.staging_bytes,
            int64_t{4096} << 20);
  absl::SetFlag(&FLAGS_staging_mib, 3);
  EXPECT_EQ(WorkerOptionsFromFlags(engine::Role::kDecode, "1")->engine.staging_bytes, 3 << 20);
  absl::SetFlag(&FLAGS_staging_mib, 0);
  EXPECT_THAT(std::string(WorkerOptionsFromFlags(engine::Role::kDecode, "1").status().message()),
              HasSubstr("staging_mib"));
}

TEST_F(WorkerFlagsTest, SegmentsAreToldInKiB) {
  EXPECT_EQ(WorkerOptionsFromFlags(engine::Role::kPrefill, "1")->segment_bytes, 0);
  absl::SetFlag(&FLAGS_kv_segment_kib, 3);
  EXPECT_EQ(WorkerOptionsFromFlags(engine::Role::kPrefill, "1")->segment_bytes, 3 << 10);
  absl::SetFlag(&FLAGS_kv_segment_kib, -1);
  EXPECT_THAT(std::string(WorkerOptionsFromFlags(engine::Role::kPrefill, "1").status().message()),
              HasSubstr("kv_segment_kib"));
}

TEST_F(WorkerFlagsTest, TransportsAreNamedOnceEachInAnyOrder) {
  const auto transports = [](const char* names) {
    absl::SetFlag(&FLAGS_transports, names);
    return WorkerOptionsFromFlags(engine::Role::kPrefill, "1");
  };
  EXPECT_EQ(transports("ipc,nccl,ucx,grpc")->transports,
            (std::vector<std::string>{"ipc", "nccl", "ucx", "grpc"}));
  EXPECT_EQ(transports("grpc,ipc")->transports, (std::vector<std::string>{"grpc", "ipc"}));
  for (const char* names : {"", "rdma", "ipc,", "grpc,grpc"}) {
    EXPECT_THAT(std::string(transports(names).status().message()), HasSubstr("transports"))
        << names;
  }
}

}  // namespace
}  // namespace baton::worker
