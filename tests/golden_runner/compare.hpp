// SPDX-License-Identifier: Apache-2.0
// Deviations from recorded results: the worst per quantity, over tensors, elements and ranks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "comm/comm.hpp"

namespace golden {

class Report {
 public:
  // `got` and `want`: numbers of one tensor (or part of it), compared to within `tolerance`; 0
  // means equal. `wide`: what a few of the quantity's values may reach (see rare_limit); 0: none.
  template <class Got, class Want>
  void compare(const std::string& quantity, const std::string& tensor, const Got* got,
               const Want* want, int64_t count, double tolerance, double wide = 0) {
    double worst = 0;
    int64_t beyond = 0;
    for (int64_t i = 0; i < count; ++i) {
      double d = deviation(double(got[i]), double(want[i]));
      if (d > worst) worst = d;
      beyond += d > tolerance;
    }
    note(quantity, tensor, worst, tolerance, count, beyond, worst > wide);
  }
  void compare(const std::string& quantity, const std::string& tensor, double got, double want,
               double tolerance) {
    compare(quantity, tensor, &got, &want, 1, tolerance);
  }
  // Something that must hold and has no measure; `problem` is said where it does not.
  void require(const std::string& quantity, const std::string& what, bool holds,
               const std::string& problem = "");
  void skip(const std::string& tensor) { ++skipped_[tensor]; }

  // The worst of all ranks, at every rank; every rank must call.
  void merge(comm::Comm& world);
  bool within() const;
  std::string table() const;

 private:
  struct Row {
    double deviation = 0, tolerance = 0, ratio = -1;  // of the tensor with the largest ratio
    std::string tensor;
    int64_t values = 0, beyond = 0;  // compared, and beyond their tolerance, on all ranks together
    bool far = false;                // one of them is beyond what a few may reach, too
    bool within() const;
  };
  static double deviation(double got, double want);  // infinite where one of them is no number
  // How many of so many values may lie beyond their tolerance where a wide one is given. Values
  // stored in bfloat16 that lie next to a rounding boundary are rounded the other way by another
  // order of summation, and move one element by a step of 2^-8; whose tolerance covers that is
  // chance. They are rare: the published code itself, with the examples of a batch in another
  // order, has up to 3 in 70,000.
  static int64_t rare_limit(int64_t values) { return std::max<int64_t>(4, values / 1000); }
  void note(const std::string& quantity, const std::string& tensor, double deviation,
            double tolerance, int64_t values, int64_t beyond, bool far);
  Row& row(const std::string& quantity);

  std::vector<std::pair<std::string, Row>> rows_;  // in the order of their first mention
  std::map<std::string, int> skipped_;
};

}  // namespace golden
