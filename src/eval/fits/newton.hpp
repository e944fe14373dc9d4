// SPDX-License-Identifier: Apache-2.0
// Minimises smooth convex functions in double by Newton steps. Each step solves its system by
// conjugate gradients, so the matrix of second derivatives is never formed.
#pragma once

#include <cstdint>
#include <vector>

namespace eval {

// A convex function of a vector, whose gradient is continuous. second() and diagonal() refer to the
// point of the last call of gradient().
class Convex {
 public:
  virtual ~Convex() = default;
  virtual int64_t size() const = 0;
  virtual double value(const std::vector<double>& w) = 0;
  // Overwrites g; returns the value.
  virtual double gradient(const std::vector<double>& w, std::vector<double>& g) = 0;
  // Overwrites `out` with the product of the second derivatives and v.
  virtual void second(const std::vector<double>& v, std::vector<double>& out) = 0;
  // Overwrites `out` with the diagonal of the second derivatives, all above 0.
  virtual void diagonal(std::vector<double>& out) = 0;
};

struct NewtonLimits {
  double gradient = 1e-10;  // ends when |gradient| is at most this share of its value at w = 0
  int64_t steps = 200, products = 2000;  // Newton steps, and products in each
};

// Returns the minimiser; the search begins at w = 0. It also ends when a step no longer lowers the
// value in double precision. NaN if the gradient at 0 is not finite.
std::vector<double> minimised(Convex& function, const NewtonLimits& limits = {});

}  // namespace eval
