# Operators need only `make demo`; CI calls `make test`. `make help` lists the rest.
SHELL := /bin/bash
.DEFAULT_GOAL := help
export PATH := $(CURDIR)/.venv/bin:$(PATH)
# A world-writable directory makes Ansible ignore ansible.cfg, so it is named.
export ANSIBLE_CONFIG := $(CURDIR)/ansible.cfg
.PHONY: help setup demo test lint unit faults acceptance sanity docs build molecule rack-test clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  %-10s %s\n", $$1, $$2}'

setup:  ## the virtual environment and the collection link
	@tools/setup

demo: setup  ## a simulated rack from nothing to serving
	@tools/demo

test: setup  ## everything CI runs
	@tools/test

lint: setup  ## ruff, mypy, yamllint, ansible-lint, changelog
	@tools/test lint

unit: setup  ## unit tests, in seconds
	@tools/test unit

faults: setup  ## every fault by the right check, no false alarm on healthy variants
	@bench/fault_matrix

acceptance: setup  ## judge a corpus of captures: ../shared/corpus, or CORPUS=folder
	@tools/acceptance

sanity: setup  ## ansible-test sanity
	@tools/test sanity

docs: setup  ## ansible-doc of every module and role, and the documentation linter
	@tools/test docs

build: setup  ## build the collection and install it from the artifact
	@tools/test build

molecule: setup  ## every role's scenario on a simulated rack
	@tools/test molecule

rack-test: setup  ## site.yml on a simulated rack: again, drift, limit, faults, kill
	@tools/test rack

clean: setup  ## take the simulated racks down
	@for rack in simulator/racks/*.yml; do simulator/rack --rack "$$(basename "$$rack" .yml)" down || exit; done
