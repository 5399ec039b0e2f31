// Tests that read a file of their own.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "gtest/gtest.h"

#include "tests/unit/checkpoint/temp_dir.h"

namespace baton::loadtest {

class FileTest : public ::testing::Test {
 protected:
  // Of the file.
  explicit FileTest(std::string name) : name_(std::move(name)) {}

  // The path of a file with `text`, which goes with the test; the next one takes its place.
  std::string File(std::string_view text) const {
    folder_.Write(name_, text);
    return folder_.File(name_);
  }

 private:
  const std::string name_;
  const TempDir folder_;
};

}  // namespace baton::loadtest
