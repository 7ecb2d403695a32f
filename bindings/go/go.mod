// SPDX-License-Identifier: Apache-2.0

module github.com/kvfolio/kvfolio/bindings/go

go 1.19
