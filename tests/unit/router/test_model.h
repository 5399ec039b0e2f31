// The shipped model's text side, loaded once per test binary.
#pragma once

#include <memory>
#include <string>

#include "gtest/gtest.h"

#include "services/router/model/served_model.h"

namespace baton::router {

inline const ServedModel& TestModel() {
  static const auto& model = *new std::unique_ptr<const ServedModel>([] {
    auto loaded = LoadServedModel(
        std::string(BATON_SOURCE_DIR) + "/tests/data/models/tiny-llama-needle", "needle");
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return *std::move(loaded);
  }());
  return *model;
}

}  // namespace baton::router
