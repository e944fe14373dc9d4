// SPDX-License-Identifier: Apache-2.0
// Tests registries: rows by name, in their order, and the message about an unknown name.
#include "base/registry.hpp"

#include <gtest/gtest.h>

namespace shapes {

struct Row {
  std::string name;
  int corners;
};
const base::Registry<Row>& rows();
#define SHAPES(ROW) ROW(triangle) ROW(square)
REGISTRY(rows, Row, "shape", SHAPES)
Row triangle_row() { return {"triangle", 3}; }
Row square_row() { return {"square", 4}; }

}  // namespace shapes

namespace {

TEST(Registry, FindsRowsByName) {
  EXPECT_EQ(shapes::rows().size(), 2u);
  EXPECT_EQ(shapes::rows().names(), (std::vector<std::string>{"triangle", "square"}));
  EXPECT_EQ(shapes::rows().at("square").corners, 4);
  EXPECT_EQ(shapes::rows().find("triangle")->corners, 3);
  EXPECT_EQ(shapes::rows().find("squar"), nullptr);
}

TEST(Registry, NamesTheNearestAndAllRows) {
  try {
    shapes::rows().at("squaer");
    FAIL() << "no row has this name";
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::Exit::config);
    EXPECT_NE(std::string(e.what()).find(
                  R"(there is no shape "squaer", nearest is 'square'; known: triangle, square)"),
              std::string::npos)
        << e.what();
  }
  EXPECT_EQ(shapes::rows().way_out("circumference"), "; known: triangle, square");
}

}  // namespace
