// SPDX-License-Identifier: Apache-2.0
// Stands in front of CUDA's header: kernels use its conversions in code for the GPU only.
#pragma once
