// SPDX-License-Identifier: Apache-2.0
// Tests descriptions of oneDNN's primitives, which differ between versions of oneDNN.
#include "kernels/cpu/onednn_versions.hpp"

#include <gtest/gtest.h>

#include "kernels/library_version.hpp"

namespace kernels {
namespace {

TEST(OnednnVersions, ChoicesOfKernelsDiffer) {
  using dnnl::memory;
  auto tensor = [](memory::dims dims, memory::format_tag tag) {
    return memory::desc(dims, memory::data_type::f32, tag);
  };
  const auto choices = describe_outputs({.x = tensor({2, 64, 14, 14}, memory::format_tag::nhwc),
                                         .y = tensor({2, 64, 14, 14}, memory::format_tag::nhwc),
                                         .weights = tensor({64, 64, 3, 3}, memory::format_tag::any),
                                         .strides = {1, 1},
                                         .padding = {1, 1}},
                                        dnnl::primitive_attr(), 2);
  ASSERT_EQ(choices.size(), 2u);  // at least kernels for this CPU, and those without vectors
  EXPECT_STRNE(choices[0].impl_info_str(), choices[1].impl_info_str());
}

TEST(OnednnVersions, TheLibraryIsTheOneThatWasBuiltWith) {
  EXPECT_TRUE(onednn_version().starts_with(std::to_string(DNNL_VERSION_MAJOR) + "."))
      << onednn_version();
}

}  // namespace
}  // namespace kernels
