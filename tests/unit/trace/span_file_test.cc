#include "common/trace/span_file.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "common/trace/span.h"
#include "common/trace/trace_context.h"

namespace baton::trace {
namespace {

namespace fs = std::filesystem;

class SpanFileTest : public ::testing::Test {
 protected:
  SpanFileTest()
      : folder_(fs::path(testing::TempDir()) /
                testing::UnitTest::GetInstance()->current_test_info()->name()) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~SpanFileTest() override { fs::remove_all(folder_); }

  std::string path() const { return folder_ / "spans.jsonl"; }
  std::unique_ptr<SpanFile> Open(SpanFileOptions options = {}) const {
    options.path = path();
    auto file = SpanFile::Open(std::move(options));
    EXPECT_TRUE(file.ok()) << file.status();
    return *std::move(file);
  }
  static Span Named(std::string name) {
    Span span;
    span.context = {.trace_id = NewTraceId(), .span_id = NewSpanId(), .sampled = true};
    span.name = std::move(name);
    return span;
  }
  // Names of the spans of a file, in order; every line is one request.
  static std::vector<std::string> Names(const std::string& path) {
    std::vector<std::string> names;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      const auto request = nlohmann::json::parse(line);
      for (const auto& span : request["resourceSpans"][0]["scopeSpans"][0]["spans"]) {
        names.push_back(span["name"]);
      }
    }
    return names;
  }

  const fs::path folder_;
};

TEST_F(SpanFileTest, WritesWhatWaitsWhenItIsClosedAndAppends) {
  Open()->Add({Named("a"), Named("b")});
  Open()->Add({Named("c")});
  EXPECT_THAT(Names(path()), testing::ElementsAre("a", "b", "c"));
  EXPECT_EQ(fs::status(path()).permissions() & fs::perms::others_all, fs::perms::none);
}

TEST_F(SpanFileTest, FileThatGrowsTooLargeBecomesTheOneBefore) {
  for (int i = 0; i < 50; ++i) {
    Open({.path = {}, .max_bytes = 2000})->Add({Named(std::to_string(i))});
  }
  EXPECT_LE(fs::file_size(path()), 2000U);
  EXPECT_LE(fs::file_size(path() + ".1"), 2000U);
  EXPECT_EQ(Names(path()).back(), "49");
  const auto before = Names(path() + ".1");
  EXPECT_EQ(std::stoi(Names(path()).front()), std::stoi(before.back()) + 1);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 2);
}

TEST_F(SpanFileTest, SpansBeyondTheBoundAreDroppedByCallsAndCounted) {
  size_t told = 0;
  const auto file =
      Open({.path = {}, .max_waiting = 10, .on_dropped = [&](size_t spans) { told += spans; }});
  file->Add(std::vector<Span>(11, Named("too many")));
  EXPECT_EQ(file->dropped(), 11U);
  file->Add(std::vector<Span>(10, Named("enough")));
  EXPECT_EQ(file->dropped(), 11U);
  EXPECT_EQ(told, 11U);
}

TEST_F(SpanFileTest, DiskThatRefusesCostsSpansOnly) {
  auto file = SpanFile::Open({.path = "/dev/full"});
  ASSERT_TRUE(file.ok()) << file.status();
  (*file)->Add({Named("lost")});
  for (int i = 0; i < 6000 && (*file)->dropped() == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ((*file)->dropped(), 1U);
}

TEST_F(SpanFileTest, ManyThreadsLoseNothing) {
  {
    const auto file = Open({.path = {}, .max_waiting = 100'000});
    std::vector<std::thread> threads;
    threads.reserve(4);
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        for (int j = 0; j < 500; ++j) {
          file->Add({Named("x")});
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    EXPECT_EQ(file->dropped(), 0U);
  }
  EXPECT_EQ(Names(path()).size(), 2000U);
}

TEST_F(SpanFileTest, PathThatCanNotBeWrittenIsAnErrorThatNamesFlagAndPath) {
  const auto file = SpanFile::Open({.path = folder_ / "none" / "spans.jsonl"});
  EXPECT_TRUE(absl::IsUnavailable(file.status()));
  const std::string message(file.status().message());
  EXPECT_THAT(message, testing::HasSubstr("--trace_file"));
  EXPECT_THAT(message, testing::HasSubstr("none/spans.jsonl"));
}

}  // namespace
}  // namespace baton::trace
