// SPDX-License-Identifier: Apache-2.0

//go:build race

package kvfolio

// The race detector lets pools forget what they hold.
const hasRaceDetector = true
